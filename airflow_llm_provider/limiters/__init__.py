"""Limits shared between processes and machines: the backends that need a file or a network.

The limiter itself is :class:`~airflow_llm_provider.engine.limits.account.AccountLimiter`. :mod:`~airflow_llm_provider.limiters.books` keeps the account book
of a run's budget in the same places.
"""

from airflow_llm_provider.limiters.place import DEFAULT_LIMITER_URL
from airflow_llm_provider.limiters.url import account_key, limiter_from_url

__all__ = ["DEFAULT_LIMITER_URL", "account_key", "limiter_from_url"]
