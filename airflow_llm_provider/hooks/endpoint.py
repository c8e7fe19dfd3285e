"""Where the model is and how to be let in: an Airflow connection, read strictly."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import SplitResult, urlsplit

from airflow_llm_provider.clients.api_key import fits_header
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.limits import FLAT_LIMITS, limiter_url, rate_limits

if TYPE_CHECKING:
    from airflow_llm_provider.engine.limits.rate_limits import RateLimits

#: Used when the connection names no host.
OPENAI_BASE_URL = "https://api.openai.com/v1"
#: Extra fields of a connection of type ``llm``.
LLM_EXTRAS = frozenset(
    {"headers", "limiter_url", "organization", "prices", "project", "rate_limits", *FLAT_LIMITS}
)
#: What of ``openai_client_kwargs``, the extra of Airflow's own ``openai`` connections, means something here.
_CLIENT_KWARGS = {
    "api_key": "api_key",
    "base_url": "base_url",
    "default_headers": "headers",
    "organization": "organization",
    "project": "project",
}
_MAX_PORT = 65_535


class ConnectionFields(Protocol):
    """The fields of an Airflow connection that are used."""

    conn_id: str
    conn_type: str | None
    host: str | None
    schema: str | None
    password: str | None
    port: int | None
    extra: str | None


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible endpoint.

    :param base_url: URL before ``/chat/completions``, without a slash at its end.
    :param api_key: key; ``None`` for servers that ask for none.
    :param organization: OpenAI organization to bill.
    :param project: OpenAI project to bill.
    :param headers: further HTTP headers of every request.
    :param prices: price overrides by model, as the connection states them.
    :param rate_limits: limits by model, ``"*"`` for all others, as far as the connection states them.
    :param limiter_url: where the account's limits are shared; ``None``: where the configuration says.
    :param ignored: names in the connection's extra that have no effect here.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    organization: str | None = None
    project: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    prices: Mapping[str, Any] = field(default_factory=dict)
    rate_limits: Mapping[str, RateLimits] = field(default_factory=dict)
    limiter_url: str | None = field(default=None, repr=False)
    ignored: tuple[str, ...] = ()

    @classmethod
    def from_connection(cls, connection: ConnectionFields) -> Self:
        """Read a connection of type ``llm`` or ``openai``.

        :raises LLMInputError: naming the connection, the field and the remedy; never a value that may be secret.
        """
        try:
            extras, ignored = _extras(connection)
            return cls(
                base_url=_base_url(connection, _text(extras, "base_url")),
                api_key=_api_key(connection.password or _text(extras, "api_key")),
                organization=_text(extras, "organization"),
                project=_text(extras, "project"),
                headers=_headers(extras.get("headers")),
                prices=_mapping("prices", extras.get("prices")),
                rate_limits=rate_limits(_mapping("rate_limits", extras.get("rate_limits")), extras),
                limiter_url=limiter_url(_text(extras, "limiter_url")),
                ignored=ignored,
            )
        except LLMInputError as error:
            raise LLMInputError(f"connection {connection.conn_id!r}: {error}") from None


def _extras(connection: ConnectionFields) -> tuple[dict[str, Any], tuple[str, ...]]:
    extras = _mapping("extra", connection.extra)
    # Airflow 2 stored form fields under a prefix; imported connections still have it.
    prefix = f"extra__{connection.conn_type}__"
    extras = {name.removeprefix(prefix): value for name, value in extras.items() if value not in (None, "")}
    kwargs = _mapping("openai_client_kwargs", extras.pop("openai_client_kwargs", None))
    ignored = [f"openai_client_kwargs.{name}" for name in kwargs if name not in _CLIENT_KWARGS]
    ignored += [name for name in extras if name not in LLM_EXTRAS]
    merged = {_CLIENT_KWARGS[name]: value for name, value in kwargs.items() if name in _CLIENT_KWARGS}
    merged.update({name: value for name, value in extras.items() if name in LLM_EXTRAS})
    return merged, tuple(sorted(ignored))


def _mapping(name: str, value: object) -> dict[str, Any]:
    """Read a JSON object, given as one or as its text, as the connection form stores it."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise LLMInputError(f"its {name} is not JSON: write an object, such as {{}}") from None
    if not isinstance(value, Mapping):
        raise LLMInputError(f"its {name} is a JSON {type(value).__name__}: write an object, such as {{}}")
    return dict(value)


def _text(extras: Mapping[str, Any], name: str) -> str | None:
    value = extras.get(name)
    if value is not None and not isinstance(value, str):
        raise LLMInputError(f"its {name} is a {type(value).__name__}: write a string")
    return (value or "").strip() or None


def _api_key(value: str | None) -> str | None:
    key = (value or "").strip()
    if not key:
        return None
    if not fits_header(key):
        raise LLMInputError(
            "its password, the API key, has a blank or a character that no HTTP header can carry: paste the key again"
        )
    return key


def _headers(value: object) -> dict[str, str]:
    headers = _mapping("headers", value)
    for name, text in headers.items():
        if not isinstance(text, str) or not (name + text).isprintable() or not (name + text).isascii():
            raise LLMInputError(f"its header {name!r} is not a printable ASCII string: write it as one")
    return headers


def _base_url(connection: ConnectionFields, from_extra: str | None) -> str:
    host = (connection.host or "").strip() or from_extra
    if not host:
        if connection.port or (connection.schema or "").strip():
            raise LLMInputError(
                "it has a port or a schema but no host: put the base URL into host, such as http://127.0.0.1:8080/v1"
            )
        return OPENAI_BASE_URL
    scheme, path = _scheme_and_path(connection.schema)
    if "://" not in host:
        host = f"{scheme or _usual_scheme(host)}://{host}"
    url = _split(host)
    port = _port(url, connection.port)
    name = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    whole = "/".join(part for part in (url.path.strip("/"), path) if part)
    # The address in the documentation of many servers is the one of the method, not of the API.
    whole = whole.removesuffix("chat/completions").rstrip("/")
    authority = f"{name}:{port}" if port else f"{name}"
    return f"{url.scheme}://{authority}/{whole}".rstrip("/")


def _scheme_and_path(schema: str | None) -> tuple[str | None, str]:
    """Tell what the field ``schema`` holds: a protocol in the form, the path when the connection came as a URI."""
    text = (schema or "").strip().strip("/")
    return (text.lower(), "") if text.lower() in ("http", "https") else (None, text)


def _usual_scheme(host: str) -> str:
    name = host.partition("/")[0].rpartition("]")[0].lstrip("[") or host.partition("/")[0].partition(":")[0]
    try:
        local = ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = name == "localhost"
    return "http" if local else "https"


def _split(host: str) -> SplitResult:
    try:
        url = urlsplit(host)
        named = bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        named = False
        url = SplitResult("", "", "", "", "")
    if not named or url.scheme not in ("http", "https"):
        raise LLMInputError("its host is no http or https URL: write it like https://api.openai.com/v1")
    if url.username is not None or url.password is not None:
        raise LLMInputError("its host holds a user or password: put the API key into the password field")
    if url.query or url.fragment:
        raise LLMInputError(
            "its host has a query or a fragment (? or #): write the URL before /chat/completions only"
        )
    return url


def _port(url: SplitResult, port: int | None) -> int | None:
    if port is not None and not 0 < port <= _MAX_PORT:
        raise LLMInputError(f"its port is {port}: give one from 1 to {_MAX_PORT}, or none")
    if port and url.port and port != url.port:
        raise LLMInputError(f"its port is {port}, and its host says {url.port}: give one of them")
    return url.port or port
