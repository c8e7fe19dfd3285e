"""tiktoken's encodings without a download: from the user's cache, or from an installed package.

tiktoken fetches a missing vocabulary from the internet, without a timeout, at the first use: in the middle of a run, on
a worker that may have no internet. Here its own definitions are run with a loader that only looks at files.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import os
import tempfile
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    import tiktoken

#: Installed package that bundles vocabularies, each under tiktoken's file name with ``.gz`` added.
_BUNDLE = "bpe_openai"


class VocabularyMissingError(Exception):
    """A vocabulary is neither in the cache nor in an installed package."""


@cache
def load_encoding(name: str) -> tiktoken.Encoding:
    """Build one of tiktoken's encodings.

    :raises LLMInputError: when tiktoken has no encoding of this name.
    :raises VocabularyMissingError: when its vocabulary is not on this machine.
    """
    import tiktoken  # noqa: PLC0415 -- loaded only where tokens are counted

    constructors = _constructors()
    if name not in constructors:
        raise LLMInputError(f"encoding is {name!r}: tiktoken has {', '.join(sorted(constructors))}")
    return tiktoken.Encoding(**constructors[name]())


def _constructors() -> dict[str, Any]:
    """Return tiktoken's definitions, as they are but for the way they load a vocabulary."""
    from tiktoken_ext import openai_public  # noqa: PLC0415 -- as above

    names: dict[str, Any] = dict(vars(openai_public))
    for name, value in vars(openai_public).items():
        if isinstance(value, FunctionType) and value.__module__ == openai_public.__name__:
            names[name] = FunctionType(value.__code__, names, name)
    names["load_tiktoken_bpe"] = _load_ranks
    names["data_gym_to_mergeable_bpe_ranks"] = _refuse
    return {name: names[name] for name in openai_public.ENCODING_CONSTRUCTORS}


def _refuse(**files: str) -> dict[bytes, int]:
    raise VocabularyMissingError(f"vocabularies in the old format are not supported: {', '.join(files)}")


def _load_ranks(url: str, expected_hash: str) -> dict[bytes, int]:
    for read in (_read_cached, _read_bundled):
        data = read(url)
        if data is not None and hashlib.sha256(data).hexdigest() == expected_hash:
            lines = (line.split() for line in data.splitlines() if line)
            return {base64.b64decode(token): int(rank) for token, rank in lines}
    raise VocabularyMissingError(url)


def _read_cached(url: str) -> bytes | None:
    """Read what tiktoken has downloaded, or a user has put, in tiktoken's cache."""
    default = str(Path(tempfile.gettempdir(), "data-gym-cache"))
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default))
    name = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    return _read(Path(folder, name)) if folder else None


def _read_bundled(url: str) -> bytes | None:
    # Found, not imported: importing the package loads 70 MB of machine code.
    package = importlib.util.find_spec(_BUNDLE)
    for folder in (package.submodule_search_locations or []) if package else []:
        packed = _read(Path(folder, "data", url.rsplit("/", 1)[-1] + ".gz"))
        if packed is not None:
            try:
                return gzip.decompress(packed)
            except (OSError, EOFError):
                return None
    return None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        # A vocabulary that cannot be read is as good as none: the next place is tried, then an estimate.
        return None
