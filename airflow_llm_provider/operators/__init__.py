"""The three tasks: split a dataset, complete a shard, merge the shards."""
