"""Which rows of a source a job takes: a small language of conditions, and Arrow's expressions."""
