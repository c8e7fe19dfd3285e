"""``@task.llm_complete``: the whole job around a Python function."""
