"""Counting in two processes at once, for machine code that holds the interpreter while it counts."""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.counting.cores import cores
from airflow_llm_provider.dataset.counting.counting_process import CountingProcess
from airflow_llm_provider.dataset.counting.token_counters import TokenCounter, portions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_llm_provider.dataset.counting.bundle_counter import BundleCounter

#: Characters beyond which a second process is worth its start, which takes as long as counting these.
_WORTH_A_PROCESS = 1 << 20
#: Characters that are sent at a time: counting them takes longer than the next ones wait for the interpreter.
_CHARACTERS_AT_A_TIME = 1 << 17
_FAILED = (
    "the second process that counts tokens could not start, has ended or did not answer, as when memory is short: all "
    "tokens were counted, in one process"
)
#: Seconds for which an answer is waited for, which takes a tenth of one.
_PATIENCE = 30.0


class SharedCounter(TokenCounter):
    """Counts as another counter does, half of it in a second process once there is much to count. To be closed.

    Where the process fails, everything is counted here.

    :param counter: counts what is counted here.
    :param start: starts the process.
    :param worth: characters beyond which it is started; one that may use a single core only starts none.
    :param patience: seconds for which an answer is waited for, before the process is ended: somebody has stopped it.
    """

    def __init__(
        self,
        counter: BundleCounter,
        *,
        start: Callable[[BundleCounter], CountingProcess] = CountingProcess,
        worth: int | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        self.name, self.exact, self.note = counter.name, counter.exact, counter.note
        self._counter = counter
        self._start = start
        self._worth = worth if worth is not None else _WORTH_A_PROCESS if cores() > 1 else sys.maxsize
        self._patience = patience
        self._seen = 0
        self._process: CountingProcess | None = None
        self._askers: ThreadPoolExecutor | None = None

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text."""
        return self.begin(texts)()

    def begin(self, texts: Sequence[str]) -> Callable[[], list[int]]:
        """Let the process begin with texts; return what counts the others, and returns the tokens of each text.

        While that is called in another thread, the process may begin with more.
        """
        self._seen += sum(map(len, texts))
        if self._askers is None and self._seen > self._worth:
            self._process = self._start(self._counter)
            # Two, so that the next texts lie in the pipe while some are counted. Until it is ready, they take none.
            self._askers = ThreadPoolExecutor(2, "llm-count", initializer=self._process.check)
        if self._askers is None or self._process is None or self._process.failed:
            return partial(self._counter.count, texts)
        parts = portions(texts, _CHARACTERS_AT_A_TIME)
        asked = [self._askers.submit(self._ask, self._process, part) for part in parts]
        return partial(self._finish, self._process, parts, asked)

    def _ask(self, process: CountingProcess, texts: Sequence[str]) -> list[int]:
        counts = process.count(texts)
        return self._counter.count(texts) if counts is None else counts

    def _finish(
        self, process: CountingProcess, parts: list[Sequence[str]], asked: list[Future[list[int]]]
    ) -> list[int]:
        counted: list[list[int]] = []
        # From the end, until both meet.
        for part, future in zip(reversed(parts), reversed(asked), strict=True):
            counted.append(self._counter.count(part) if future.cancel() else self._answer(process, future))
        return [count for counts in reversed(counted) for count in counts]

    def _answer(self, process: CountingProcess, future: Future[list[int]]) -> list[int]:
        try:
            return future.result(self._patience)
        except TimeoutError:
            # Whoever waits for it counts by itself then.
            process.kill()
            return future.result()

    def close(self) -> None:
        """End the process; what a person should know about it is in ``note`` from now on."""
        if self._askers is not None and self._process is not None:
            self._process.close()
            self._askers.shutdown(cancel_futures=True)
            if self._process.failed:
                self.note = self.note or _FAILED
