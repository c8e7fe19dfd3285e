"""Links that tasks show in the UI."""
