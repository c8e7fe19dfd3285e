from __future__ import annotations

import errno
import socket
import ssl
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from airflow_llm_provider.clients.transport import transport_error
from airflow_llm_provider.engine.call import FailureKind

SECRET = "t0p-secret"
KEY = ConnectionKey("model.example", 443, *[True] * 2, *[None] * (len(ConnectionKey._fields) - 4))
CONNECTION, CONFIGURATION = FailureKind.CONNECTION, FailureKind.CONFIGURATION
REQUEST = SimpleNamespace(real_url=URL(f"https://{SECRET}@model.example"))


def caused(error, cause):
    error.__cause__ = cause
    return error


def refused_certificate(number):
    """Return the error of a certificate, with OpenSSL's number for what is wrong with it."""
    error = ssl.SSLCertVerificationError(1, SECRET)
    error.verify_code = number
    return error


class TestTransportError:
    @pytest.mark.parametrize(
        ("error", "kind", "code", "text"),
        [
            (
                aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(errno.ECONNREFUSED, SECRET)),
                *(CONNECTION, "connect_failed", "cannot connect to model.example:443: ClientConnectorError"),
            ),
            (
                caused(aiohttp.ClientConnectorDNSError(KEY, OSError(SECRET)), socket.gaierror(-2, SECRET)),
                *(CONNECTION, "connect_failed", "cannot connect to model.example:443: gaierror"),
            ),
            (
                caused(
                    aiohttp.ClientConnectorError(KEY, OSError(SECRET)), TimeoutError(errno.ETIMEDOUT, SECRET)
                ),
                *(CONNECTION, "connect_timeout", "no connection to model.example:443 in time"),
            ),
            (
                aiohttp.ConnectionTimeoutError(f"to https://{SECRET}@host"),
                *(CONNECTION, "connect_timeout", "no connection to the endpoint in time"),
            ),
            (
                aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(SECRET)),
                *(CONFIGURATION, "tls_certificate", "certificate of model.example:443 is not trusted"),
            ),
            *(
                (
                    caused(
                        aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(SECRET)),
                        refused_certificate(number),
                    ),
                    *(CONFIGURATION, "tls_certificate", f"certificate of model.example:443 {wrong}"),
                )
                for number, wrong in (
                    (9, "is not valid yet"),
                    (10, "has expired"),
                    (62, "is for another name"),
                    (64, "is for another name"),
                    (18, "is not trusted"),
                )
            ),
            (
                aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, SECRET)),
                *(CONNECTION, "connect_failed", "cannot connect to model.example:443"),
            ),
            (aiohttp.ServerDisconnectedError(), CONNECTION, "connection_lost", "ServerDisconnectedError"),
            (aiohttp.ClientPayloadError(SECRET), CONNECTION, "connection_lost", "ClientPayloadError"),
            (aiohttp.ClientConnectionResetError(SECRET), CONNECTION, "connection_lost", "ResetError"),
            (
                caused(aiohttp.ClientOSError(errno.ETIMEDOUT, SECRET), TimeoutError(errno.ETIMEDOUT, SECRET)),
                *(CONNECTION, "connection_lost", "the connection broke before the answer: TimeoutError"),
            ),
            (
                aiohttp.ClientResponseError(REQUEST, (), status=400, message=SECRET),
                *(FailureKind.BAD_RESPONSE, "bad_http", "no sound HTTP: ClientResponseError"),
            ),
            (
                aiohttp.ClientHttpProxyError(REQUEST, (), status=407, message=SECRET),
                *(FailureKind.AUTHENTICATION, "proxy_login", "HTTP 407"),
            ),
            (aiohttp.InvalidURL(f"https://{SECRET}"), CONFIGURATION, "invalid_url", "no valid URL"),
            (ValueError(SECRET), CONNECTION, "connection_lost", "ValueError"),
        ],
    )
    def test_means_what_its_type_says_and_repeats_none_of_its_words(self, error, kind, code, text):
        found = transport_error(error)
        assert (found.kind, found.code) == (kind, code)
        assert text in str(found)
        assert SECRET not in str(found)
