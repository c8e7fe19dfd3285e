"""From a row to a request: the template over its columns, the body that goes out, the fingerprint that names it."""

from __future__ import annotations

from airflow_llm_provider.prompt.body import RequestShape, fingerprint, request_body
from airflow_llm_provider.prompt.template import PromptTemplate
from airflow_llm_provider.prompt.text import RowRenderError, clean_text, is_blank, print_value

__all__ = [
    "PromptTemplate",
    "RequestShape",
    "RowRenderError",
    "clean_text",
    "fingerprint",
    "is_blank",
    "print_value",
    "request_body",
]
