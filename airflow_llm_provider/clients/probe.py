"""Ask an endpoint whether it is there and lets us in, without paying for anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llm_provider.clients.tls import ssl_context
from airflow_llm_provider.clients.transport import authorities_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

#: HTTP statuses that say "no such method here" rather than "no".
_NO_METHOD = frozenset({404, 405, 501})
_REFUSED = frozenset({401, 403})
_MODELS_SHOWN = 3


def probe(
    base_url: str,
    headers: Mapping[str, str],
    *,
    timeout: float = 10.0,
    transport: httpx.BaseTransport | None = None,
) -> tuple[bool, str]:
    """List the models at ``base_url``; where there is no such list, send a request too empty to be answered.

    :param base_url: URL before ``/models`` and ``/chat/completions``.
    :param headers: HTTP headers, the key among them.
    :param timeout: seconds for each of the at most two requests.
    :param transport: what carries the requests; ``None``: the network.
    :return: whether a model can be asked there, and a sentence for a person, without secrets.
    """
    import httpx  # noqa: PLC0415 -- costs time that building a DAG need not pay

    try:
        trusted = ssl_context()
    except OSError as error:
        return False, str(authorities_error(error))
    try:
        with httpx.Client(
            headers=dict(headers), timeout=timeout, transport=transport, verify=trusted
        ) as client:
            models = client.get(f"{base_url}/models")
            if models.status_code in _NO_METHOD:
                return _without_model_list(client.post(f"{base_url}/chat/completions", json={}), base_url)
            return _with_model_list(models, base_url)
    except httpx.TimeoutException:
        return False, f"{base_url} did not answer within {timeout:g} s: is it reachable from this machine?"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return (
            False,
            f"{base_url} cannot be reached ({type(error).__name__}: {error}): is the server running?",
        )


def _with_model_list(response: httpx.Response, base_url: str) -> tuple[bool, str]:
    if response.is_success:
        body = _json(response)
        listed = body.get("data") if isinstance(body, dict) else None
        if not isinstance(listed, list):
            return False, f"{base_url}/models answers, but not with a list of models. {_path_hint(base_url)}"
        names = [item["id"] for item in listed if isinstance(item, dict) and isinstance(item.get("id"), str)]
        shown = ", ".join(names[:_MODELS_SHOWN]) + (", ..." if len(names) > _MODELS_SHOWN else "")
        return (
            True,
            f"{base_url} serves {len(names)} model{'' if len(names) == 1 else 's'}: {shown or 'none yet'}",
        )
    return False, _refusal(response, base_url)


def _without_model_list(response: httpx.Response, base_url: str) -> tuple[bool, str]:
    body = _json(response)
    error = body.get("error") if isinstance(body, dict) else None
    unknown_model = isinstance(error, dict) and error.get("code") == "model_not_found"
    if response.status_code in (400, 422) or unknown_model:
        return (
            True,
            f"{base_url} takes requests; it lists no models, so whether it has yours shows with the first row",
        )
    if response.status_code in _NO_METHOD:
        return False, f"{base_url} has neither /models nor /chat/completions. {_path_hint(base_url)}"
    return False, _refusal(response, base_url)


def _refusal(response: httpx.Response, base_url: str) -> str:
    status = response.status_code
    if status in _REFUSED:
        return (
            f"{base_url} refuses the key (HTTP {status}): put a valid API key into the connection's password"
        )
    if response.is_redirect:
        return (
            f"{base_url} redirects (HTTP {status}) to {response.headers.get('location')}: use that base URL"
        )
    return f"{base_url} answers HTTP {status}: it is there, but not well; try again later"


def _path_hint(base_url: str) -> str:
    if base_url.rsplit("/", 1)[-1].startswith("v"):
        return "Is this an OpenAI-compatible server?"
    return f"Most servers want /v1 at the end of the base URL: try {base_url}/v1"


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
