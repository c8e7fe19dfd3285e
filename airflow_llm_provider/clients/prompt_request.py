"""A request whose body leaves at once, where aiohttp puts it off.

Before Python 3.12, which can start a task on the spot, aiohttp writes each body in a task of its own. Of requests that
become ready together none then leaves before all of them are prepared: they travel as a bunch, their answers come as a
bunch, and each waits for the others, round after round.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from aiohttp import ClientRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator


class _PromptRequest(ClientRequest):
    def write_bytes(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, None]:
        """Write what can be written without waiting, and return the rest, which is seldom anything."""
        return begun(super().write_bytes(*args, **kwargs))


def begun(coroutine: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    """Run a coroutine until it first has to wait, and return what is left of it.

    :raises BaseException: what it raised before that.
    """
    try:
        waited_for = coroutine.send(None)
    except StopIteration:
        return _nothing()
    return _rest(coroutine, waited_for)


async def _nothing() -> None:
    pass


async def _rest(coroutine: Coroutine[Any, Any, None], waited_for: Any) -> None:
    await _going_on(coroutine, waited_for)


@types.coroutine
def _going_on(coroutine: Coroutine[Any, Any, None], waited_for: Any) -> Generator[Any, Any, None]:
    """Go on with a coroutine that waits for something already, as a task does."""
    while True:
        try:
            value = yield waited_for
        except BaseException as error:  # noqa: BLE001 -- mostly a cancellation: the coroutine's own affair
            step: Callable[[Any], Any] = coroutine.throw
            argument: Any = error
        else:
            step, argument = coroutine.send, value
        try:
            waited_for = step(argument)
        except StopIteration:
            return


#: The class of the requests of a session.
REQUEST_CLASS: type[ClientRequest] = ClientRequest if sys.version_info >= (3, 12) else _PromptRequest
