"""The certificate authorities that are trusted."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

from openai import DefaultAsyncHttpxClient

if TYPE_CHECKING:
    import ssl


def ssl_context() -> ssl.SSLContext:
    """Return a context that trusts whom the SDK's HTTP library trusts: ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``, if set.

    Reading the authorities takes a tenth of a second of processor time, so it is done once a process.

    :raises OSError: when the authorities cannot be read.
    """
    return _context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.cache
def _context(*_: str | None) -> ssl.SSLContext:
    # The SDK is built upon httpx or a successor with the same public names.
    base = next(base for base in DefaultAsyncHttpxClient.__mro__ if base.__name__ == "AsyncClient")
    context: ssl.SSLContext = sys.modules[base.__module__.partition(".")[0]].create_ssl_context()
    return context
