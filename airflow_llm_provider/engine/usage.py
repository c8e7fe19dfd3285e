"""Tokens of one or more requests."""

from __future__ import annotations

from airflow_llm_provider.engine.value import value


@value
class Usage:
    """Tokens as the endpoint bills them.

    :param prompt_tokens: tokens read, cached ones included.
    :param completion_tokens: tokens written, hidden reasoning included.
    :param cached_tokens: the part of ``prompt_tokens`` read from the provider's prompt cache.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
        )

    @property
    def total_tokens(self) -> int:
        """Tokens read and written."""
        return self.prompt_tokens + self.completion_tokens
