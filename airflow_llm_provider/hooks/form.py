"""The connection form of type ``llm``: one description, for every way in which Airflow asks for it."""

from __future__ import annotations

from typing import Any

#: Fields beyond the common ones, in the form of ``conn-fields`` of the provider's metadata; kept in ``extra``.
CONN_FIELDS: dict[str, dict[str, Any]] = {
    "organization": {
        "label": "Organization",
        "description": "OpenAI organization to bill. Leave empty for the key's own.",
        "schema": {"type": ["string", "null"]},
    },
    "project": {
        "label": "Project",
        "description": "OpenAI project to bill. Leave empty for the key's own.",
        "schema": {"type": ["string", "null"]},
    },
    "headers": {
        "label": "Headers",
        "description": 'Further HTTP headers of every request, as JSON: {"X-Team": "search"}',
        "schema": {"type": ["string", "null"]},
    },
    "prices": {
        "label": "Prices",
        "description": (
            "US dollars per million tokens by model, as JSON, for models whose price is not known or is your own: "
            '{"my-model": {"input_per_mtok": 0.1, "output_per_mtok": 0.4}}'
        ),
        "schema": {"type": ["string", "null"]},
    },
    "requests_per_minute": {
        "label": "Requests per minute",
        "description": "What the account may send to a model. Leave empty if the endpoint states it in its answers.",
        "schema": {"type": ["integer", "null"], "minimum": 1},
    },
    "tokens_per_minute": {
        "label": "Tokens per minute",
        "description": "Prompt and answer together. Leave empty if the endpoint states it in its answers.",
        "schema": {"type": ["integer", "null"], "minimum": 1},
    },
    "rate_limits": {
        "label": "Rate limits",
        "description": (
            "Limits by model, as JSON, where models differ; * stands for all others: "
            '{"gpt-4o": {"requests_per_minute": 500, "tokens_per_minute": 30000}, "*": {"requests_per_minute": 5000}}'
        ),
        "schema": {"type": ["string", "null"]},
    },
    "limiter_url": {
        "label": "Limiter URL",
        "description": (
            "Where all who use this account share its limits: file:// (one machine), redis://HOST:6379/0 (all "
            "machines). Leave empty for the option [llm] limiter_url."
        ),
        "schema": {"type": ["string", "null"], "format": "password"},
    },
}

UI_FIELD_BEHAVIOUR: dict[str, Any] = {
    "hidden-fields": ["login", "port", "schema"],
    "relabeling": {"host": "Base URL", "password": "API key"},
    "placeholders": {
        "host": "https://api.openai.com/v1, or http://127.0.0.1:8080/v1",
        "password": "empty for servers that ask for none",
    },
}


def connection_form_widgets() -> dict[str, Any]:
    """Build the fields as Airflow 3.1 wants them."""
    # Airflow's API server supplies stand-ins for these where they are not installed.
    from flask_appbuilder.fieldwidgets import BS3TextFieldWidget  # type: ignore[import-not-found]  # noqa: PLC0415
    from flask_babel import lazy_gettext  # type: ignore[import-not-found]  # noqa: PLC0415
    from wtforms import StringField  # type: ignore[import-untyped]  # noqa: PLC0415

    return {
        name: StringField(
            lazy_gettext(described["label"]),
            description=described["description"],
            widget=BS3TextFieldWidget(),
        )
        for name, described in CONN_FIELDS.items()
    }
