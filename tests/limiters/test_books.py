import pytest

from airflow_llm_provider.engine.budget.book import Balance
from airflow_llm_provider.engine.budget.memory_book import MemoryBook
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.limiters.books import FileBook, RedisBook, book_from_url
from tests.limiters.book_contract import BookContract, in_loop
from tests.limiters.test_url import NOT_UNDERSTOOD


class TestMemoryBook(BookContract):
    @pytest.fixture(autouse=True)
    def _book(self):
        book = MemoryBook()
        self.make = lambda: book


class TestBookFromUrl:
    @in_loop
    async def test_opens_the_book_of_a_run(self, tmp_path, redis_url):
        assert isinstance(book_from_url("memory://", "run"), MemoryBook)
        assert isinstance(book_from_url(f"file://{tmp_path}", "run"), FileBook)
        self.opened.append(book_from_url(redis_url, "run"))
        assert isinstance(self.opened[0], RedisBook)

    @in_loop
    async def test_runs_have_books_of_their_own(self, tmp_path):
        await book_from_url(f"file://{tmp_path}", "one").raise_to(Spent(tokens=5))
        assert await book_from_url(f"file://{tmp_path}", "two").raise_to(Spent()) == Balance()
        assert (await book_from_url(f"file://{tmp_path}", "one").raise_to(Spent())).spent == Spent(tokens=5)

    @pytest.mark.parametrize("url", NOT_UNDERSTOOD)
    def test_refuses_what_a_limiter_does_not_understand(self, url):
        with pytest.raises(LLMInputError, match="limiter_url"):
            book_from_url(url, "run")
