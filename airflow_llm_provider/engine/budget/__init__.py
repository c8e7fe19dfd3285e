"""A run's budget: what it may spend, the account book that all its processes share, and the gate that keeps to both."""
