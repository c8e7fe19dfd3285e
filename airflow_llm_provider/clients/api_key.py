"""The key of an account. Who refuses one says in their own words where it came from."""

from __future__ import annotations


def fits_header(key: str) -> bool:
    """Tell whether ``Authorization`` can carry a key: printable ASCII without a blank."""
    return key.isascii() and key.isprintable() and " " not in key
