"""The tokens of what is sent."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_llm_provider.dataset.arrow.text import json_text
from airflow_llm_provider.dataset.counting.bundle_counter import bundle_counter
from airflow_llm_provider.dataset.counting.token_counters import (
    PROBE_COUNTS,
    PROBES,
    EstimatingCounter,
    TiktokenCounter,
    TokenCounter,
    ToktokCounter,
)
from airflow_llm_provider.dataset.counting.vocabularies import VocabularyMissingError, load_encoding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ChatTokens", "TokenCounter", "encoding_of_model", "token_counter"]

#: Counts the prompt of a model that nobody knows.
DEFAULT_ENCODING = "o200k_base"
#: OpenAI's models since GPT-4o; tiktoken's own list lags behind.
_CURRENT = re.compile(r"(ft:)?(gpt-(4o|4\.[1-9]|[5-9]|oss|audio|realtime)|chatgpt|o[1-9])\b|gpt-[5-9]")
#: OpenAI's published way to count a conversation: each message is wrapped in three tokens, and the reply is primed
#: with three more.
_PER_MESSAGE = 3
_PER_REPLY = 3
#: The server writes the schema into the prompt, with some words around it.
_PER_SCHEMA = 16


def encoding_of_model(model: str) -> str | None:
    """Return the encoding of a model; ``None`` when it is not known.

    Names with a vendor in front, as routers and gateways use them, count by what follows the last slash.
    """
    from tiktoken.model import encoding_name_for_model  # noqa: PLC0415 -- loaded only where tokens are counted

    name = model.rsplit("/", 1)[-1].lower()
    try:
        return encoding_name_for_model(name)
    except KeyError:
        return DEFAULT_ENCODING if _CURRENT.match(name) else None


@cache
def token_counter(model: str, encoding: str | None = None) -> TokenCounter:
    """Choose the counter of a model's prompts. Nothing is ever downloaded.

    :param model: name of the model.
    :param encoding: tiktoken's name of the encoding; ``None``: by the model's name.
    :raises LLMInputError: when tiktoken has no such encoding.
    """
    name = encoding or encoding_of_model(model)
    counter = _counter(name or DEFAULT_ENCODING)
    if name is None:
        counter.exact = False
        counter.note = counter.note or (
            f"tiktoken does not know model {model!r}: its tokens are counted with {DEFAULT_ENCODING}, which may differ "
            "from the model's own count; give the spec encoding= to choose another"
        )
    return counter


def _counter(name: str) -> TokenCounter:
    toktok = _toktok(name)
    if toktok is not None:
        return ToktokCounter(name, toktok)
    bundled = bundle_counter(name)
    if bundled is not None:
        return bundled
    try:
        return TiktokenCounter(load_encoding(name))
    except VocabularyMissingError:
        return EstimatingCounter(
            name,
            f"the vocabulary of {name} is not on this machine, and nothing is downloaded in a run: tokens are estimated, "
            "rather too many than too few. Install airflow-llm-provider[offline], or fill a folder once where there is "
            "internet and name it in TIKTOKEN_CACHE_DIR",
        )


def _toktok(name: str) -> Any:
    """Return toktok if it is installed and counts this encoding as tiktoken does."""
    if name not in PROBE_COUNTS or importlib.util.find_spec("toktok") is None:
        return None
    try:
        import toktok  # noqa: PLC0415 -- optional

        counts = toktok.batch_count(PROBES, name)
    except Exception:  # noqa: BLE001 -- whatever is wrong with it, tiktoken counts as well
        return None
    return toktok if tuple(counts) == PROBE_COUNTS[name] else None


class ChatTokens:
    """Counts the prompt of whole conversations as a server bills them.

    :param counter: counts texts.
    :param schema: JSON Schema of the answer, which goes into the prompt; ``None``: plain text.
    """

    def __init__(self, counter: TokenCounter, schema: Mapping[str, Any] | None = None) -> None:
        self._counter = counter
        self._per_conversation = _PER_REPLY
        if schema is not None:
            self._per_conversation += counter.count([json_text(schema)])[0] + _PER_SCHEMA
        self._known: dict[tuple[str, str], int] = {}

    def count(self, conversations: Sequence[Sequence[Mapping[str, Any]]]) -> list[int]:
        """Return the prompt tokens of each conversation.

        Only the user's messages differ from row to row; the others are counted once.
        """
        totals = []
        texts: list[str] = []
        owners: list[int] = []
        for index, messages in enumerate(conversations):
            total = self._per_conversation
            for message in messages:
                role, content = str(message["role"]), _text(message["content"])
                total += _PER_MESSAGE + self._count_once("", role)
                if role == "user":
                    texts.append(content)
                    owners.append(index)
                else:
                    total += self._count_once(role, content)
            totals.append(total)
        for index, count in zip(owners, self._counter.count(texts), strict=True):
            totals[index] += count
        return totals

    def around(self, opening: Sequence[Mapping[str, Any]]) -> int:
        """Return the prompt tokens of a conversation without the text of the user's message, which is its last.

        :param opening: the messages before it.
        """
        # An empty text has no tokens of its own.
        return self.count([[*opening, {"role": "user", "content": ""}]])[0]

    def _count_once(self, role: str, text: str) -> int:
        key = (role, text)
        if key not in self._known:
            if len(self._known) > 64:  # noqa: PLR2004 -- a system message that differs by row is not worth keeping
                self._known.clear()
            self._known[key] = self._counter.count([text])[0]
        return self._known[key]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json_text(content)
