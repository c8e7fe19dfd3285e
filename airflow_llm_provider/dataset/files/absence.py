"""Whether "no such file" means just that. Some filesystems say it of whatever went wrong."""

from __future__ import annotations

#: Statuses of HTTP that say that nothing is there.
_ABSENT = frozenset({404, 410})


def other_cause(error: FileNotFoundError) -> BaseException | None:
    """Return what really happened when it is something else: a refused connection, a timeout, a server's error.

    fsspec's HTTP filesystem turns every failure into ``FileNotFoundError``, with the failure as its cause.
    """
    cause = error.__cause__
    if cause is None or isinstance(cause, FileNotFoundError):
        return None
    status = getattr(cause, "status", None)
    if isinstance(status, int):
        return None if status in _ABSENT else cause
    return cause if isinstance(cause, (OSError, TimeoutError)) or _is_of_aiohttp(cause) else None


def _is_of_aiohttp(error: BaseException) -> bool:
    """Tell an error of the connection, which aiohttp does not always derive from ``OSError``."""
    return any(kind.__module__.partition(".")[0] == "aiohttp" for kind in type(error).__mro__)
