"""The secrets of one deployment as files: made once, kept, and never a default that everybody knows."""

from __future__ import annotations

import base64
import json
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["make_secrets"]

#: Readable by its owner, the user of every Airflow service.
_PRIVATE = 0o600
#: Readable by the users of PostgreSQL and Redis too; only these two mount the folder.
_SHARED = 0o644
_FERNET_BYTES = 32
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")


@dataclass(frozen=True, kw_only=True)
class _Secret:
    """One secret.

    :param variable: environment variable that gives it, ``None``: it is always made.
    :param make: makes it.
    :param keep: what becomes unusable when it changes; ``None``: it may change.
    :param plain: whether it becomes part of URLs.
    """

    make: Callable[[], str]
    variable: str | None = None
    keep: str | None = None
    plain: bool = False


def _token() -> str:
    return secrets.token_urlsafe(32)


def _fernet_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(_FERNET_BYTES)).decode()


_SECRETS = {
    "fernet_key": _Secret(
        variable="AIRFLOW_FERNET_KEY", make=_fernet_key, keep="the connections that it has encrypted"
    ),
    "jwt_secret": _Secret(make=_token),
    "api_secret_key": _Secret(make=_token),
    "postgres_password": _Secret(
        variable="POSTGRES_PASSWORD", make=_token, keep="the database that was made with it", plain=True
    ),
    "redis_password": _Secret(variable="REDIS_PASSWORD", make=_token, plain=True),
    "admin_password": _Secret(variable="AIRFLOW_ADMIN_PASSWORD", make=_token),
}


def make_secrets(folder: Path, shared: Path, environment: Mapping[str, str]) -> None:
    """Write every secret that is not there, and what is made of them.

    :param folder: folder for Airflow's services, one file for each secret or URL.
    :param shared: folder for PostgreSQL and Redis: ``postgres_password`` and ``redis.conf``.
    :param environment: secrets of your own, and the URLs ``DATABASE_URL``, ``BROKER_URL`` and ``LIMITER_URL`` with
        ``{password}`` where the password goes.
    :raises LLMInputError: when a secret of your own cannot be used, before anything is written.
    """
    known = {name: _value(folder, name, secret, environment) for name, secret in _SECRETS.items()}
    urls = {
        "sql_alchemy_conn": _url(environment, "DATABASE_URL", known["postgres_password"]),
        "broker_url": _url(environment, "BROKER_URL", known["redis_password"]),
        "limiter_url": _url(environment, "LIMITER_URL", known["redis_password"]),
    }
    for path in (folder, shared):
        path.mkdir(parents=True, exist_ok=True)
    for name, value in (known | urls).items():
        _write(folder / name, value, _PRIVATE)
    _write(folder / "ui_passwords.json", json.dumps({"admin": known["admin_password"]}), _PRIVATE)
    _write(shared / "postgres_password", known["postgres_password"], _SHARED)
    _write(shared / "redis.conf", f'requirepass "{known["redis_password"]}"\n', _SHARED)


def _value(folder: Path, name: str, secret: _Secret, environment: Mapping[str, str]) -> str:
    given = environment.get(secret.variable or "", "").strip()
    try:
        kept = (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        kept = None
    if given:
        _check(name, given, secret)
        if secret.keep and kept is not None and kept != given:
            raise LLMInputError(
                f"{secret.variable} is not the one of the first start, which would lose {secret.keep}: leave it out, give "
                "the first one, or begin anew without the volumes (docker compose down --volumes)"
            )
        return given
    return secret.make() if kept is None else kept


def _check(name: str, given: str, secret: _Secret) -> None:
    if name == "fernet_key":
        try:
            size = len(base64.urlsafe_b64decode(given))
        except ValueError:
            size = 0
        if size != _FERNET_BYTES:
            raise LLMInputError(
                f"{secret.variable} is no Fernet key: give 32 bytes in URL-safe base 64, or leave it out to have one made"
            )
    elif secret.plain and not _PLAIN.fullmatch(given):
        raise LLMInputError(
            f"{secret.variable} becomes part of a URL: use letters, digits and -_.~ only, or leave it out to have one made"
        )


def _url(environment: Mapping[str, str], name: str, password: str) -> str:
    try:
        return environment[name].replace("{password}", password)
    except KeyError:
        raise LLMInputError(f"{name} is not set: give a URL with {{password}} in it") from None


def _write(path: Path, value: str, mode: int) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=mode)
    # Whatever the umask took away.
    temporary.chmod(mode)
    temporary.write_text(value, encoding="utf-8")
    temporary.replace(path)
