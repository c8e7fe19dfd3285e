"""From a row to a request: the template over its columns, the body that goes out, the fingerprint that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.prompt.body import RequestShape, fingerprint, request_body
from airflow_llm_provider.prompt.function import PromptFunction, check_function
from airflow_llm_provider.prompt.template import PromptTemplate, opening_of
from airflow_llm_provider.prompt.text import RowRenderError, clean_text, is_blank, print_value

if TYPE_CHECKING:
    from airflow_llm_provider.spec import CompletionSpec

__all__ = [
    "PromptFunction",
    "PromptTemplate",
    "RequestShape",
    "RowRenderError",
    "clean_text",
    "fingerprint",
    "is_blank",
    "opening_of",
    "print_value",
    "prompt_of",
    "request_body",
]


def prompt_of(spec: CompletionSpec) -> PromptTemplate | PromptFunction:
    """Return what turns rows into messages.

    :raises LLMInputError: when the template cannot be compiled, the function not be called, or there is neither.
    """
    if spec.prompt is None:
        raise LLMInputError(
            "CompletionSpec.prompt is not given: give a template, a function of a row, or use @task.llm_complete"
        )
    if isinstance(spec.prompt, str):
        return PromptTemplate(spec)
    check_function(spec.prompt)
    return PromptFunction(spec.prompt, opening_of(spec))
