"""The certificate authorities that are trusted."""

from __future__ import annotations

import functools
import os
import re
import ssl
from pathlib import Path

import certifi

_HASHED = re.compile(r"[0-9a-f]{8}\.[0-9]+")


def ssl_context() -> ssl.SSLContext:
    """Return a context that trusts the machine's authorities, or those of ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``.

    On a machine that has none, such as a slim image, they are Mozilla's, from certifi. Reading the authorities takes a tenth
    of a second of processor time, so it is done once a process.

    :raises OSError: when the authorities cannot be read.
    """
    return _context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.cache
def _context(cafile: str | None, capath: str | None) -> ssl.SSLContext:
    if cafile:
        return ssl.create_default_context(cafile=cafile)
    if capath:
        return ssl.create_default_context(capath=capath)
    return ssl.create_default_context(cafile=None if _machine_has_authorities() else certifi.where())


def _machine_has_authorities() -> bool:
    places = ssl.get_default_verify_paths()
    # OpenSSL finds an authority in a folder by its hash only. Where all lie in one bundle, as on Red Hat, an interpreter
    # that was built elsewhere finds none.
    hashed = places.capath and any(_HASHED.fullmatch(file.name) for file in Path(places.capath).iterdir())
    return bool(places.cafile or hashed)
