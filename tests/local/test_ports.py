from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.local.services.ports import kept_port

if TYPE_CHECKING:
    from pathlib import Path


class TestKeptPort:
    def test_is_the_one_of_the_last_time(self, tmp_path: Path) -> None:
        file = tmp_path / "port"
        with socket.socket() as last:
            # As whoever listened there leaves it: nobody else is given it, and it can be had again.
            last.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            last.bind(("127.0.0.1", 0))
            port = last.getsockname()[1]
            file.write_text(str(port))
            assert kept_port(file) == port

    def test_is_another_one_when_somebody_listens_there(self, tmp_path: Path) -> None:
        file = tmp_path / "port"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            file.write_text(str(taken.getsockname()[1]))
            assert kept_port(file) != taken.getsockname()[1]

    @pytest.mark.parametrize("text", [None, "", "many", "70000"])
    def test_is_any_when_none_is_known(self, tmp_path: Path, text: str | None) -> None:
        file = tmp_path / "port"
        if text is not None:
            file.write_text(text)
        assert 0 < kept_port(file) < 65536
