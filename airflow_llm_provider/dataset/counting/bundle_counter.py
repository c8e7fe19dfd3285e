"""Counting with the machine code of bpe-openai: as tiktoken does, in half of its time, whatever the text."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.dataset.arrow.text import clean
from airflow_llm_provider.dataset.counting.counting_program import load_bindings
from airflow_llm_provider.dataset.counting.token_counters import PROBE_COUNTS, PROBES, TokenCounter

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE = "bpe_openai"
#: Encodings that the package lacks, and those that cut ordinary text in the same way.
_SAME = {"o200k_harmony": "o200k_base"}


class BundleCounter(TokenCounter):
    """Counts with bpe-openai. Its time grows with the text and no faster, so none is counted in pieces.

    It holds the interpreter while it counts one text: threads take turns between texts.

    :param name: of an encoding.
    :param bindings: the package's machine code.
    """

    def __init__(self, name: str, bindings: Any) -> None:
        self.name = name
        #: File of the machine code.
        self.file: str = bindings.__file__
        #: The encoding's name there.
        self.encoding = _SAME.get(name, name)
        self.exact = True
        self.note: str | None = None
        self._count = bindings.tokenizer_for_encoding(self.encoding).count

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text."""
        count = self._count
        try:
            return [count(text) for text in texts]
        except UnicodeEncodeError:
            return [count(clean(text)) for text in texts]


def bundle_counter(name: str) -> BundleCounter | None:
    """Return the counter of an encoding, if the package is installed and counts as tiktoken does."""
    if name not in PROBE_COUNTS:
        return None
    try:
        counter = BundleCounter(name, _bindings())
        counts = tuple(counter.count(PROBES))
    except Exception:  # noqa: BLE001 -- whatever is wrong with it, tiktoken counts as well
        return None
    return counter if counts == PROBE_COUNTS[name] else None


@cache
def _bindings() -> Any:
    """Load the machine code.

    :raises ImportError: when there is none.
    """
    package = importlib.util.find_spec(_PACKAGE)
    for folder in (package.submodule_search_locations or []) if package else []:
        for file in sorted(Path(folder).glob("_bindings.*.so")):
            return load_bindings(str(file))
    raise ImportError(f"{_PACKAGE} is not installed, or holds no machine code")
