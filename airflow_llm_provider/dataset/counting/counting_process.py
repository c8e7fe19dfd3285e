"""A second process that counts with the machine code of bpe-openai."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.dataset.counting import counting_program
from airflow_llm_provider.dataset.counting.token_counters import PROBE_COUNTS, PROBES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_llm_provider.dataset.counting.bundle_counter import BundleCounter

#: All that it is told of the environment, which may hold secrets: where the interpreter's own libraries lie.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class CountingProcess:
    """Counts texts in a process of its own, which gets these and nothing else; several threads may ask.

    It is a new program, no fork: Airflow's tasks run threads, and are not allowed children of :mod:`multiprocessing`. When
    the process that started it ends, however it does, its input ends, and so it does.

    :param counter: whose machine code it loads.
    """

    def __init__(self, counter: BundleCounter) -> None:
        self._counts = PROBE_COUNTS[counter.name]
        self._closed = False
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        #: Whether it cannot be asked any more.
        self.failed = False
        try:
            # -I and -S: nothing of the environment or of site-packages is loaded.
            self._process = subprocess.Popen(  # noqa: S603 -- ourselves
                [_interpreter(), "-I", "-S", counting_program.__file__, counter.file, counter.encoding],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # What machine code says when it fails may quote a text.
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )
        except Exception:  # noqa: BLE001 -- whatever is wrong with it, its parent counts as well
            self.failed = True

    def check(self) -> None:
        """Wait until it counts, and see that it does so as tiktoken does."""
        if tuple(self.count(PROBES) or ()) != self._counts:
            self._fail()

    def count(self, texts: Sequence[str]) -> list[int] | None:
        """Return the tokens of each text; ``None``: it cannot count them."""
        if self._process is None or self.failed:
            return None
        try:
            return self._exchange(self._process.stdin, self._process.stdout, list(texts))
        except Exception:  # noqa: BLE001 -- as above
            self._fail()
            return None

    def _exchange(self, requests: Any, replies: Any, texts: list[str]) -> list[int] | None:
        # Hand over hand: who sends first receives first, and the next one may send meanwhile.
        with self._sending:
            counting_program.send(requests, texts)
            self._receiving.acquire()
        try:
            counts: list[int] | None = counting_program.receive(replies)
        finally:
            self._receiving.release()
        return counts

    def _fail(self) -> None:
        # Who ends it needs it no more.
        self.failed = not self._closed

    def kill(self) -> None:
        """Give it up: who waits for its answer gets none."""
        self._fail()
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End it."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def _interpreter() -> str:
    """Return the path of this Python.

    :raises LookupError: when this is another program, with Python inside it: nobody knows what that does when it is started.
    """
    if "python" not in Path(sys.executable).name.lower():
        raise LookupError(sys.executable)
    return sys.executable
