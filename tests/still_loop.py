"""A loop whose time stands still until a test lets it pass: whatever is out of time is so at once, and nothing else ever is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Coroutine


class StillLoop(asyncio.SelectorEventLoop):
    """Its timers go by its own time; sockets and threads are real."""

    passed = 0.0

    def time(self) -> float:
        """Return the seconds that were let pass."""
        return self.passed


def run_still(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on such a loop."""
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(main)


async def time_passes(seconds: float) -> None:
    """Let time pass for everything on the running loop, which is one of these, and what is due by then happen."""
    cast("StillLoop", asyncio.get_running_loop()).passed += seconds
    # In the first turn the loop finds what is due, in the second it has done it.
    for _ in range(2):
        await asyncio.sleep(0)


async def arrives() -> None:
    """Let arrive what one side of a connection on the running loop has sent to the other."""
    for _ in range(9):
        await asyncio.sleep(0)
