"""Tokens of texts, counted as the model's vendor does."""
