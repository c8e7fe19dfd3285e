"""Failures on the way to the endpoint, before it said a word."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiohttp

from airflow_llm_provider.engine.call import CallError, FailureKind


def transport_error(error: BaseException) -> CallError:
    """Turn a transport's exception into the error it means.

    Their texts are dropped: they may hold URLs with secrets in them. What counts is the type of what lies at the
    bottom, since httpx reports a lost connection as a timeout when it runs on aiohttp.
    """
    causes = _causes(error)
    host = next((_host(cause) for cause in causes if _host(cause)), None)
    place = f" {host}" if host else ""
    if any(isinstance(cause, aiohttp.InvalidURL) for cause in causes):
        return CallError(
            FailureKind.CONFIGURATION, "invalid_url", "the connection's base URL is no valid URL"
        )
    if any(
        isinstance(cause, (ssl.SSLCertVerificationError, aiohttp.ClientConnectorCertificateError))
        for cause in causes
    ):
        return CallError(
            FailureKind.CONFIGURATION,
            "tls_certificate",
            f"the TLS certificate of{place or ' the endpoint'} is not trusted: install its authority on this machine, "
            "such as by SSL_CERT_FILE",
        )
    if any(isinstance(cause, (aiohttp.ConnectionTimeoutError, asyncio.TimeoutError)) for cause in causes):
        return CallError(
            FailureKind.CONNECTION, "connect_timeout", f"no connection to{place or ' the endpoint'} in time"
        )
    kind = type(causes[-1]).__name__
    if any(isinstance(cause, aiohttp.ClientConnectorError) for cause in causes):
        return CallError(
            FailureKind.CONNECTION, "connect_failed", f"cannot connect to{place or ' the endpoint'}: {kind}"
        )
    return CallError(
        FailureKind.CONNECTION, "connection_lost", f"the connection broke before the answer: {kind}"
    )


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def _host(error: Any) -> str | None:
    host = getattr(error, "host", None)
    port = getattr(error, "port", None)
    return f"{host}:{port}" if isinstance(host, str) and host else None
