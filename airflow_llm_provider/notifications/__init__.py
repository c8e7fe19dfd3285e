"""What to say about a task or a run."""
