"""Signals that end a script: what is in flight may come back first, since it is paid for."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

#: Seconds that what is in flight gets. Most answers take less, and Docker, the first to lose patience, kills after ten.
GRACE_SECONDS = 8.0
#: What a process does about a signal that nobody has set a handler for.
_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextmanager
def ended_by_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Let the first SIGTERM, or Ctrl-C, call ``stop`` in place of ending the process; the end of the block then ends it.

    A second one calls it again, and ends the process at once. Signals that somebody has set a handler for, as Airflow
    does in its tasks, are theirs, and only the main thread can set any.

    :param stop: asks the work in the block to end soon; hears why.
    """
    set_before = {number: signal.getsignal(number) for number in _DEFAULTS}
    ours = {number: handler for number, handler in set_before.items() if handler == _DEFAULTS[number]}
    if threading.current_thread() is not threading.main_thread():
        ours.clear()
    came: list[int] = []

    def give_back() -> None:
        for number, handler in ours.items():
            if signal.getsignal(number) is end_soon:  # and not one that somebody has set meanwhile
                signal.signal(number, handler)

    def end_soon(number: int, _: FrameType | None) -> None:
        came.append(number)
        # The second time too: where the work is in a thread of its own, as in a notebook, that is waited for.
        stop(signal.Signals(number).name)
        if len(came) > 1:
            give_back()
            signal.raise_signal(number)

    for number in ours:
        signal.signal(number, end_soon)
    try:
        yield
    finally:
        give_back()
        if came:
            signal.raise_signal(came[0])
