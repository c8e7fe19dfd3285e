"""One answer as one line of a journal: a checksum, and a JSON object."""

from __future__ import annotations

import zlib
from typing import Any

import orjson

from airflow_llm_provider.dataset.arrow.text import clean
from airflow_llm_provider.dataset.outcomes.record import Record
from airflow_llm_provider.engine.call import Outcome
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage

_CHECKSUM_DIGITS = 8
_TEXTS = ("text", "code", "message", "model", "finish_reason", "request_id", "account")


def write_line(record: Record) -> bytes:
    """Write one record as a line."""
    outcome = record.outcome
    value: dict[str, Any] = {
        "fingerprint": record.fingerprint.hex(),
        "occurrence": record.occurrence,
        "status": outcome.status.value,
        "usage": [
            outcome.usage.prompt_tokens,
            outcome.usage.completion_tokens,
            outcome.usage.cached_tokens,
        ],
        "cost_usd": outcome.cost_usd,
        "attempts": outcome.attempts,
        "latency_ms": outcome.latency_ms,
    }
    for name in _TEXTS:
        text = getattr(outcome, name)
        if text is not None:
            value[name] = clean(text)
    payload = orjson.dumps(value)
    return b"%08x %b\n" % (zlib.crc32(payload), payload)


def read_line(line: bytes) -> Record | None:
    """Read one line; ``None`` when it is torn or damaged."""
    checksum, _, payload = line.partition(b" ")
    if len(checksum) != _CHECKSUM_DIGITS or checksum != b"%08x" % zlib.crc32(payload):
        return None
    try:
        value = orjson.loads(payload)
        prompt, completion, cached = value["usage"]
        outcome = Outcome(
            index=-1,
            status=RowStatus(value["status"]),
            usage=Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached),
            cost_usd=value["cost_usd"],
            attempts=value["attempts"],
            latency_ms=value["latency_ms"],
            **{name: value.get(name) for name in _TEXTS},
        )
        return Record(bytes.fromhex(value["fingerprint"]), value["occurrence"], outcome)
    except (ValueError, TypeError, KeyError):
        return None
