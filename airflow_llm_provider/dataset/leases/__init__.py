"""Who works on what, so that nobody pays for the same row at the same time."""
