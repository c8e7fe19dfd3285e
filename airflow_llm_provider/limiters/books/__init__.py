"""The account book of a run's budget, shared between its processes: a small file, or a hash in Redis.

Books are kept for a month after their last entry. One that was lost (a reboot, a flushed Redis) is made good by
``raise_to`` from what the run's results say; one that is damaged is an error, since unknown is not "nothing spent".
"""

from airflow_llm_provider.limiters.books.file import FileBook
from airflow_llm_provider.limiters.books.redis import RedisBook
from airflow_llm_provider.limiters.books.url import book_from_url

__all__ = ["FileBook", "RedisBook", "book_from_url"]
