"""Any endpoint that speaks OpenAI's ``/chat/completions``."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import functools
import json
import logging
import re
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import orjson
from yarl import URL

from airflow_llm_provider.clients.api_key import fits_header
from airflow_llm_provider.clients.classify import refused
from airflow_llm_provider.clients.completion import read_completion
from airflow_llm_provider.clients.connections import Connections
from airflow_llm_provider.clients.error_body import load_json, read_error
from airflow_llm_provider.clients.meaning import parameter_named
from airflow_llm_provider.clients.redact import Redactor, public_url
from airflow_llm_provider.engine.call import CallError, FailureKind, Reply
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt.body import MAX_COMPLETION_TOKENS, MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_llm_provider.clients.connections import HttpAnswer

log = logging.getLogger(__name__)

_OPENAI = "https://api.openai.com/v1"
_PATH = "/chat/completions"
#: Gateways hand out completions with other statuses than 200, and they are paid all the same.
_SUCCESS = range(200, 300)
_BAD_REQUEST = (400, 422)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADERS = {"Accept": "application/json", "Content-Type": "application/json"}
_OTHER_CAP = {MAX_TOKENS: MAX_COMPLETION_TOKENS, MAX_COMPLETION_TOKENS: MAX_TOKENS}


class OpenAIClient:
    """Sends requests to one endpoint with one key. Never retries, never waits, holds no state but its connections.

    Requests go over connections of our own: the SDK's ways there take two to ten times the processor time, and loading
    it takes a task as long as everything else of ours. One client serves one event loop.

    :param base_url: URL before ``/chat/completions``; ``None``: OpenAI's.
    :param api_key: key; ``None`` or blank: none is sent, for servers that want none.
    :param organization: OpenAI organisation.
    :param project: OpenAI project.
    :param headers: further HTTP headers.
    :param concurrency: most requests in flight, hence connections.
    :param epoch: source of epoch seconds, for dates in headers.
    :raises LLMInputError: when the URL or the key is none, or a header or the environment's proxy cannot be used.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        organization: str | None = None,
        project: str | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: int = 16,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        for name, value in (("base_url", base_url), ("api_key", api_key)):
            if value is not None and not isinstance(value, str):
                # The value may be a secret, so it is not shown.
                raise LLMInputError(f"{name} is a {type(value).__name__}: give a text, or None")
        key = _checked_key(api_key)
        if concurrency < 1:
            raise LLMInputError(f"concurrency is {concurrency}: give at least 1")
        url, login = _split_login(_checked_url(base_url or _OPENAI))
        own = {
            "User-Agent": _user_agent(),
            "Authorization": f"Bearer {key}" if key else login,
            "OpenAI-Organization": organization,
            "OpenAI-Project": project,
        }
        sent = _merged(_HEADERS, own, _checked_headers(headers or {}))
        self._connections = Connections(URL(_completions_url(url)), sent, limit=concurrency)
        self._redact = Redactor(key, login, *(headers or {}).values())
        self._epoch = epoch
        self._cap_name: str | None = None

    def __repr__(self) -> str:
        return f"<OpenAIClient {public_url(str(self._connections.url))}>"

    async def complete(self, body: Mapping[str, Any], *, timeout: float) -> Reply:  # noqa: ASYNC109 -- a bound for the whole call, tries of the cap's name included
        """Send ``body`` and return the completion.

        :param timeout: seconds for the whole call.
        :raises CallError: when there is no completion.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._complete(body)
        except TimeoutError:
            message = f"no whole answer within {timeout:g} s"
            raise CallError(FailureKind.TIMEOUT, "timeout", message) from None

    async def aclose(self) -> None:
        """Close connections."""
        await self._connections.aclose()

    async def _complete(self, body: Mapping[str, Any]) -> Reply:
        sent, requests = self._with_cap_name(body), 1
        answer = await self._connections.post(_encode(sent))
        if answer.status in _BAD_REQUEST and self._cap_refused(sent, answer.body):
            sent = self._with_cap_name(body)
            answer, requests = await self._connections.post(_encode(sent)), 2
        try:
            reply = self._read(answer)
        except CallError as error:
            error.requests = requests
            raise
        return reply if requests == 1 else dataclasses.replace(reply, requests=requests)

    def _read(self, answer: HttpAnswer) -> Reply:
        now = self._epoch()
        if answer.status not in _SUCCESS:
            raise refused(answer.status, answer.headers, answer.body, now=now, redact=self._redact)
        return read_completion(answer.body, answer.headers, now=now, redact=self._redact)

    def _with_cap_name(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Name the output cap as this endpoint is known to want it."""
        wanted = self._cap_name
        if wanted is None or _OTHER_CAP[wanted] not in body:
            return body
        return {(wanted if key == _OTHER_CAP[wanted] else key): value for key, value in body.items()}

    def _cap_refused(self, sent: Mapping[str, Any], raw: bytes) -> bool:
        """Say whether the cap's name is at fault and another is left to try; remember that one from now on."""
        try:
            error = read_error(load_json(raw))
        except ValueError:
            return False
        used = next((name for name in _OTHER_CAP if name in sent), None)
        if error is None or used is None or parameter_named(error) != used or not error.blames_name:
            return False
        if self._cap_name is None:
            self._cap_name = _OTHER_CAP[used]
            log.info("The endpoint does not know %s; sending %s from now on", used, self._cap_name)
        # False when both names were refused. Requests that were out when the name changed are sent again.
        return self._cap_name != used


def _checked_key(key: str | None) -> str:
    key = (key or "").strip()
    if not fits_header(key):
        raise LLMInputError(
            "the API key has a blank or a character that no HTTP header can carry: paste the key again"
        )
    return key


def _checked_url(url: str) -> str:
    url = url.strip()
    try:
        parts = urlsplit(url)
        # urlsplit drops line breaks and tabs, and takes blanks for part of a host.
        valid = url.isprintable() and " " not in parts.netloc
        valid = valid and parts.scheme in ("http", "https") and bool(URL(url).host) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise LLMInputError(
            "the connection's base URL must be an http or https URL such as https://api.openai.com/v1, the part before "
            "/chat/completions"
        )
    return url


def _completions_url(base_url: str) -> str:
    """Append the path, keeping a query such as Azure's ``api-version``, and forgiving a base that has it already."""
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/").removesuffix(_PATH)
    return urlunsplit((parts.scheme, parts.netloc, path + _PATH, parts.query, ""))


def _split_login(url: str) -> tuple[str, str | None]:
    """Take user and password out of a URL, as a header's value."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    basic = base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit((parts.scheme, host, parts.path, parts.query, "")), f"Basic {basic}"


def _checked_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            # The value may be a secret, so it is not shown.
            raise LLMInputError(
                f"the connection's header {name!r} cannot be sent: use printable ASCII characters"
            )
    return headers


@functools.cache  # to find out takes milliseconds
def _user_agent() -> str:
    try:
        return f"airflow-llm-provider/{version('airflow-llm-provider')}"
    except PackageNotFoundError:  # a copy on PYTHONPATH
        return "airflow-llm-provider"


def _merged(*sources: Mapping[str, str | None]) -> dict[str, str]:
    """Let later headers replace earlier ones, whatever their case, and drop those without a value."""
    merged: dict[str, tuple[str, str | None]] = {}
    for source in sources:
        merged |= {name.lower(): (name, value) for name, value in source.items()}
    return {name: value for name, value in merged.values() if value}


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # integers beyond 64 bits, in a schema's bounds for instance
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
