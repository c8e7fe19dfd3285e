"""What can go wrong with processes on this machine.

LocalError
├── StartError       a process did not come up, or died
└── ApiError         Airflow's REST API refused a call
"""

from __future__ import annotations

__all__ = ["ApiError", "LocalError", "StartError"]


class LocalError(RuntimeError):
    """Base of all errors of the local set-up."""


class StartError(LocalError):
    """A process did not come up in time, or ended by itself; the message ends with its log."""


class ApiError(LocalError):
    """Airflow's REST API answered with an error.

    :param method: HTTP method of the call.
    :param path: URL path of the call.
    :param status: HTTP status, None when there was no answer.
    :param detail: start of the body, or what kept the answer away.
    """

    def __init__(self, method: str, path: str, status: int | None, detail: str) -> None:
        self.method = method
        self.path = path
        self.status = status
        self.detail = detail
        super().__init__(f"{method} {path} answered {status or 'nothing'}: {detail}")
