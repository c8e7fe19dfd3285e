"""The hook of connection type ``llm``: an OpenAI-compatible endpoint."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow.sdk import BaseHook

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.compat import AirflowNotFoundException, airflow_option
from airflow_llm_provider.hooks.endpoint import Endpoint
from airflow_llm_provider.hooks.limits import limiter_url

if TYPE_CHECKING:
    from openai import OpenAI

    from airflow_llm_provider.clients.openai import OpenAIClient
    from airflow_llm_provider.jobs.completing.accounts import Account

#: Connection types whose fields this hook understands.
_CONN_TYPES = frozenset({"llm", "openai"})
#: Default of the option ``[llm] limiter_url``: shared by all processes of a machine.
_DEFAULT_LIMITER_URL = "file://"
#: Parts of header names whose values are secrets.
_SECRET_HEADERS = ("authorization", "cookie", "key", "secret", "token")
#: Stands for the key that the SDK wants also for a server that asks for none; it is not sent. The SDK itself leaves it out
#: only where each single request says so.
_NO_KEY = "none"


class LLMHook(BaseHook):
    """An OpenAI-compatible endpoint: OpenAI itself, vLLM, Ollama, llama.cpp, a gateway.

    The connection's ``host`` is the base URL, such as ``http://127.0.0.1:8080/v1`` (empty: OpenAI), its ``password`` the
    API key (empty: a server that asks for none). Connections of type ``openai`` work as they are. The environment
    (``OPENAI_API_KEY`` and its like) is never read, so that no key goes where nobody sent it.

    :param conn_id: Airflow connection of type ``llm`` or ``openai``.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "llm_default"
    conn_type = "llm"
    hook_name = "LLM (OpenAI-compatible)"

    def __init__(self, conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the form's own fields for Airflow 3.1, which does not read them from the provider's metadata."""
        from airflow_llm_provider.hooks.form import connection_form_widgets  # noqa: PLC0415 -- loads wtforms

        return connection_form_widgets()

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return labels of the form's common fields for Airflow 3.1."""
        from airflow_llm_provider.hooks.form import UI_FIELD_BEHAVIOUR  # noqa: PLC0415

        return {name.replace("-", "_"): value for name, value in UI_FIELD_BEHAVIOUR.items()}

    @cached_property
    def endpoint(self) -> Endpoint:
        """The endpoint that the connection describes, its secrets masked in logs from here on.

        :raises LLMInputError: when there is no such connection, or a field of it is wrong.
        """
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException as error:
            raise LLMInputError(
                f"connection {self.conn_id!r} does not exist: create it with airflow connections add {self.conn_id} "
                "--conn-type llm --conn-host http://127.0.0.1:8080/v1 --conn-password KEY, or name another by conn_id"
            ) from error
        if connection.conn_type not in _CONN_TYPES:
            raise LLMInputError(
                f"connection {self.conn_id!r} is of type {connection.conn_type!r}: use one of type llm or openai"
            )
        endpoint = Endpoint.from_connection(connection)
        _mask_secrets(endpoint)
        if endpoint.ignored:
            self.log.warning(
                "Connection %s sets %s, which has no effect here", self.conn_id, ", ".join(endpoint.ignored)
            )
        return endpoint

    def get_client(self, concurrency: int) -> OpenAIClient:
        """Return a client of the endpoint.

        :param concurrency: most requests in flight at a time, hence connections to keep open.
        """
        from airflow_llm_provider.clients.openai import OpenAIClient  # noqa: PLC0415 -- loads aiohttp

        endpoint = self.endpoint
        return OpenAIClient(
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            organization=endpoint.organization,
            project=endpoint.project,
            headers=endpoint.headers,
            concurrency=concurrency,
        )

    def get_account(self, *, weight: int = 1) -> Account:
        """Return the account that the connection sends on, known by the connection's id.

        :param weight: its share of the requests, relative to other accounts'.
        """
        from airflow_llm_provider.jobs.completing.accounts import Account  # noqa: PLC0415 -- loads pyarrow
        from airflow_llm_provider.limiters import account_key  # noqa: PLC0415 -- as above
        from airflow_llm_provider.prices import Pricer  # noqa: PLC0415 -- loads a price list

        endpoint = self.endpoint
        return Account(
            name=self.conn_id,
            client=self.get_client,
            key=account_key(
                endpoint.base_url,
                endpoint.api_key or "\n".join(_secret_headers(endpoint)),
                endpoint.organization,
                endpoint.project,
            ),
            limits=endpoint.rate_limits,
            limiter_url=self.limiter_url,
            weight=weight,
            pricer=Pricer(endpoint.prices, base_url=endpoint.base_url),
        )

    @property
    def limiter_url(self) -> str | None:
        """Where the account's limits are shared: as the connection says, else the option ``[llm] limiter_url``.

        :raises LLMInputError: when it is not understood.
        """
        if self.endpoint.limiter_url is not None:
            return self.endpoint.limiter_url
        try:
            url = limiter_url(airflow_option("llm", "limiter_url", fallback=_DEFAULT_LIMITER_URL))
        except LLMInputError as error:
            raise LLMInputError(f"the option [llm] limiter_url: {error}") from None
        _mask_password(url)
        return url

    def get_conn(self) -> OpenAI:
        """Return the official SDK's client of the endpoint, for calls of your own: embeddings, files, a single question.

        It has the SDK's retries and none of this package's limits, and trusts the authorities that tasks trust.
        """
        from openai import DefaultHttpxClient, Omit, OpenAI  # noqa: PLC0415 -- takes a second to load

        from airflow_llm_provider.clients.tls import ssl_context  # noqa: PLC0415 -- not at a DAG file's parse

        endpoint = self.endpoint
        own = {"OpenAI-Organization": endpoint.organization, "OpenAI-Project": endpoint.project}
        # What is not given is left out by name, so that the environment has no say over the connection.
        headers: dict[str, Any] = {name: value or Omit() for name, value in own.items()}
        headers.update(endpoint.headers)
        return OpenAI(
            base_url=endpoint.base_url,
            api_key=endpoint.api_key or _NO_KEY,
            default_headers=headers,
            http_client=DefaultHttpxClient(
                verify=ssl_context(), event_hooks={"request": [] if endpoint.api_key else [_leave_out_no_key]}
            ),
        )

    def test_connection(self) -> tuple[bool, str]:
        """Say whether the endpoint is there and accepts the key, without paying for a completion."""
        from airflow_llm_provider.clients.probe import probe  # noqa: PLC0415 -- loads an HTTP client

        try:
            endpoint = self.endpoint
        except LLMInputError as error:
            return False, str(error)
        headers = dict(endpoint.headers)
        if endpoint.api_key:
            headers["Authorization"] = f"Bearer {endpoint.api_key}"
        if endpoint.organization:
            headers["OpenAI-Organization"] = endpoint.organization
        if endpoint.project:
            headers["OpenAI-Project"] = endpoint.project
        return probe(endpoint.base_url, headers)


def _leave_out_no_key(request: Any) -> None:
    if request.headers.get("Authorization") == f"Bearer {_NO_KEY}":
        del request.headers["Authorization"]


def _mask_secrets(endpoint: Endpoint) -> None:
    """Mask what Airflow does not know to be secret: a key from the extra, header values."""
    from airflow.sdk.log import mask_secret  # noqa: PLC0415 -- loads Airflow's logging

    if endpoint.api_key:
        mask_secret(endpoint.api_key)
    for value in _secret_headers(endpoint):
        mask_secret(value)
    _mask_password(endpoint.limiter_url)


def _mask_password(url: str | None) -> None:
    from airflow.sdk.log import mask_secret  # noqa: PLC0415 -- loads Airflow's logging

    password = urlsplit(url or "").password
    if password:
        mask_secret(password)
        mask_secret(unquote(password))


def _secret_headers(endpoint: Endpoint) -> list[str]:
    return [
        value
        for name, value in endpoint.headers.items()
        if any(part in name.lower() for part in _SECRET_HEADERS)
    ]
