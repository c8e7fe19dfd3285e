"""Keeps secrets out of texts that are shown."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

#: What keys look like, OpenAI's with its middle starred out included.
_SECRET = re.compile(
    r"\b(?:sk|pk)-[\w*.\-]{4,}|\b(?:gsk|hf|xai|nvapi)[-_][\w*\-]{8,}|\bBearer\s+\S+|\bAIza[\w\-]{10,}",
    re.IGNORECASE,
)
#: Shorter secrets are no secrets, and replacing them would maul every text.
_SHORTEST = 4


class Redactor:
    """Takes secrets out of texts.

    :param secrets: texts known to be secret, such as the key.
    """

    def __init__(self, *secrets: str | None) -> None:
        self._secrets = sorted(
            {secret for secret in secrets if secret and len(secret) >= _SHORTEST}, key=len, reverse=True
        )

    def __call__(self, text: str) -> str:
        """Return the text with every secret, and all that looks like a key, replaced by ``***``."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _SECRET.sub("***", text)


def public_url(url: str) -> str:
    """Return a URL without what may be secret in it: user, password, query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
