"""Processes that begin together, are watched, and end together, whatever happens to who started them."""
