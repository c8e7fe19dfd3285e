"""One try at a shard, and what it needs: accounts, engine, budget, questions, and where outcomes go."""
