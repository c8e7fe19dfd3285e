import threading

import pytest

from airflow_llm_provider.dataset.sources.ahead import read_ahead


class TestReadAhead:
    def test_yields_the_same_in_order(self):
        assert list(read_ahead(iter(range(1, 100)))) == list(range(1, 100))

    def test_nothing_is_nothing(self):
        assert list(read_ahead(iter(()))) == []

    def test_reads_the_next_while_one_is_in_use(self):
        reached = threading.Event()

        def items():
            yield 1
            reached.set()
            yield 2

        ahead = read_ahead(items())
        assert next(ahead) == 1
        assert reached.wait(30)
        assert list(ahead) == [2]

    def test_an_error_comes_in_its_place(self):
        def items():
            yield 1
            raise OSError("damaged")

        ahead = read_ahead(items())
        assert next(ahead) == 1
        with pytest.raises(OSError, match="damaged"):
            next(ahead)

    def test_closed_early_it_leaves_no_thread(self):
        before = set(threading.enumerate())
        ahead = read_ahead(iter(range(1, 100)))
        next(ahead)
        ahead.close()
        assert not set(threading.enumerate()) - before
