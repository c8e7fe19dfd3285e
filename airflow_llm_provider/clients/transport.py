"""Failures on the way to the endpoint, before it said a word that can be read."""

from __future__ import annotations

import ssl
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError

from airflow_llm_provider.engine.call import CallError, FailureKind

_OTHER_NAME = "is for another name: check the base URL"
#: What is wrong with a certificate, by OpenSSL's numbers, where no authority would mend it.
_WRONG_CERTIFICATES = {
    9: "is not valid yet: check this machine's clock",
    10: "has expired: whoever runs it has to renew it, unless this machine's clock is wrong",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}


def transport_error(error: BaseException) -> CallError:
    """Turn a transport's exception into the error it means.

    Texts of exceptions are dropped: they may hold URLs with secrets in them. Types count, those of the causes included.
    """
    causes = _causes(error)
    if _any(causes, aiohttp.InvalidURL):
        return CallError(
            FailureKind.CONFIGURATION, "invalid_url", "the connection's base URL is no valid URL"
        )
    if _any(causes, ssl.SSLCertVerificationError, aiohttp.ClientConnectorCertificateError):
        return _certificate_error(causes)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return _proxy_error(error)
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return _connect_error(error, causes)
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError) or _any(
        causes, ContentEncodingError
    ):
        return CallError(
            FailureKind.BAD_RESPONSE, "bad_http", f"an answer that is no sound HTTP: {_kind(causes)}"
        )
    return CallError(
        FailureKind.CONNECTION, "connection_lost", f"the connection broke before the answer: {_kind(causes)}"
    )


def authorities_error(error: OSError) -> CallError:
    """Say that the certificate authorities cannot be read."""
    return CallError(
        FailureKind.CONFIGURATION,
        "tls_authorities",
        f"the certificate authorities of this machine cannot be read ({_kind([error])}): check SSL_CERT_FILE and "
        "SSL_CERT_DIR",
    )


def too_large_error(status: int, most_bytes: int) -> CallError:
    """Say that the answer did not end in time."""
    return CallError(
        FailureKind.BAD_RESPONSE,
        "answer_too_large",
        f"HTTP {status} with an answer of more than {most_bytes:,} bytes",
        status_code=status,
    )


def _certificate_error(causes: list[BaseException]) -> CallError:
    place = _place(causes)
    # aiohttp's own error is an ssl.SSLCertVerificationError as well, but without a number.
    numbers = [getattr(cause, "verify_code", None) for cause in causes]
    wrong = next((_WRONG_CERTIFICATES[number] for number in numbers if number in _WRONG_CERTIFICATES), None)
    about = (
        f"the TLS certificate of {place} is not trusted: install its authority on this machine, such as by "
        "SSL_CERT_FILE"
        if wrong is None
        else f"the TLS certificate of {place} {wrong}"
    )
    return CallError(FailureKind.CONFIGURATION, "tls_certificate", about)


def _connect_error(error: BaseException, causes: list[BaseException]) -> CallError:
    proxy = "the proxy " if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
    place = f"{proxy}{_place(causes)}"
    if _any(causes, TimeoutError):
        return CallError(FailureKind.CONNECTION, "connect_timeout", f"no connection to {place} in time")
    return CallError(FailureKind.CONNECTION, "connect_failed", f"cannot connect to {place}: {_kind(causes)}")


def _proxy_error(error: aiohttp.ClientHttpProxyError) -> CallError:
    about = f"the proxy lets no one through to the endpoint: HTTP {error.status}"
    if error.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        about += " (the proxy between here and the endpoint asks for a login)"
        return CallError(FailureKind.AUTHENTICATION, "proxy_login", about)
    return CallError(FailureKind.CONNECTION, "proxy_refused", about)


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def _any(causes: list[BaseException], *types: type[BaseException]) -> bool:
    return any(isinstance(cause, types) for cause in causes)


def _kind(causes: list[BaseException]) -> str:
    return type(causes[-1]).__name__


def _place(causes: list[BaseException]) -> str:
    return next((found for cause in causes if (found := _host(cause))), "the endpoint")


def _host(error: Any) -> str | None:
    host = getattr(error, "host", None)
    port = getattr(error, "port", None)
    return f"{host}:{port}" if isinstance(host, str) and host else None
