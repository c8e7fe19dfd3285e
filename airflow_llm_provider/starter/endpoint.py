"""Which model is asked: yours, as the environment says, and which connection leads there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CONNECTION", "ModelEndpoint", "yours"]

CONNECTION = "llm_default"
_OPENAI = "https://api.openai.com/v1"


@dataclass(frozen=True, kw_only=True)
class ModelEndpoint:
    """An OpenAI-compatible endpoint.

    :param base_url: its base URL.
    :param model: the model's name there.
    :param api_key: None for a keyless server.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)


def yours(environment: Mapping[str, str]) -> ModelEndpoint | None:
    """Return the endpoint that the environment names, None when it names none.

    A key alone is no wish to spend money: many environments have one. `LLM_MODEL` or `LLM_BASE_URL` is.

    :param environment: where LLM_BASE_URL, LLM_API_KEY (or OPENAI_API_KEY) and LLM_MODEL are looked up.
    :raises LLMInputError: when only a part of an endpoint is given.
    """
    base_url = environment.get("LLM_BASE_URL", "").strip()
    model = environment.get("LLM_MODEL", "").strip()
    key = environment.get("LLM_API_KEY", "").strip() or environment.get("OPENAI_API_KEY", "").strip()
    if not base_url and not model:
        return None
    if not model:
        raise LLMInputError("LLM_BASE_URL is set, but LLM_MODEL is not: name the model to ask")
    if not base_url and not key:
        raise LLMInputError(
            f"LLM_MODEL is {model!r}, but there is neither LLM_BASE_URL nor a key: set one of them"
        )
    base_url = base_url or _OPENAI
    if not base_url.startswith(("http://", "https://")):
        raise LLMInputError(f"LLM_BASE_URL is {base_url!r}: it must begin with http:// or https://")
    return ModelEndpoint(base_url=base_url, model=model, api_key=key or None)
