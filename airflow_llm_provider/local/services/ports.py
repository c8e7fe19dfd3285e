"""Ports of 127.0.0.1 that nothing listens on."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["free_port", "kept_port", "port_or_free"]


def free_port() -> int:
    """Return one that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def port_or_free(port: int) -> int:
    """Return a port if nothing listens on it, else any that is free.

    :param port: the one that is wanted.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return free_port()
    return port


def kept_port(file: Path) -> int:
    """Return the port that a file names if nothing listens on it, else any that is free.

    :param file: written when the port is taken; it may be missing.
    """
    try:
        return port_or_free(int(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return free_port()
