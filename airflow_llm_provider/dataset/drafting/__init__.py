"""From a source to a plan: counted, cut into shards, named by their content."""
