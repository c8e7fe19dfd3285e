"""Shared limits: a pure bucket on a row of numbers, and the limiter that shares it through a backend."""
