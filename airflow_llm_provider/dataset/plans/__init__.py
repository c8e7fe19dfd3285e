"""A plan and its shards, as they lie on storage."""
