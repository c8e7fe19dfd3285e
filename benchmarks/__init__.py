"""One command per claim: ``python -m benchmarks.NAME`` measures it and prints one line of JSON.

Every benchmark measures its baseline in the same run, by turns with ours, and takes medians: on a shared machine only
ratios of neighbours mean anything. What is measured runs in a process of its own, the model server in another.
``--quick`` takes the smallest size: it shows that the benchmark works, and its numbers mean nothing.
"""
