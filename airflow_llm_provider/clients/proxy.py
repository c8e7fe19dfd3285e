"""The proxy that the environment asks for: ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY``, ``NO_PROXY``."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.request import getproxies

from yarl import URL

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS = ("http", "https")


def proxy_for(url: URL, environment: Mapping[str, str] | None = None) -> URL | None:
    """Return the proxy through which ``url`` is to be reached; ``None``: none.

    :param environment: proxies by kind of URL, as :func:`urllib.request.getproxies` returns them; ``None``: those of
        this process.
    :raises LLMInputError: when the proxy is none that can be used.
    """
    proxies = getproxies() if environment is None else environment
    found = proxies.get(url.scheme) or proxies.get("all")
    if not found or any(_excepts(entry.strip().lower(), url) for entry in proxies.get("no", "").split(",")):
        return None
    try:
        proxy = URL(found if "://" in found else f"http://{found}")
        usable = proxy.scheme in _KINDS and bool(proxy.host)
    except ValueError:
        usable = False
    if not usable:
        # The value may hold a password, so it is not shown.
        raise LLMInputError(
            f"the proxy that the environment names for {url.scheme} is no http or https URL: mend "
            f"{url.scheme.upper()}_PROXY or ALL_PROXY, or list {url.host} in NO_PROXY"
        )
    return proxy


def _excepts(entry: str, url: URL) -> bool:
    """Say whether an entry of ``NO_PROXY`` speaks of a URL.

    ``*``; an address or a network such as ``10.0.0.0/8``; ``example.com``, with all below it; ``.example.com``, only
    what lies below it; ``https://example.com``, only that; any of them with a port behind.
    """
    scheme, separator, rest = entry.rpartition("://")
    if (separator and scheme not in ("all", url.scheme)) or not rest:
        return False
    name, port = _without_port(rest)
    if port and port != str(url.port):
        return False
    host = (url.host or "").lower()
    network = _network(name)
    if network is not None:
        address = _network(host)
        return (
            address is not None and address.version == network.version and address.network_address in network
        )
    if name.startswith(("*.", ".")):
        return host.endswith(name.removeprefix("*"))
    alone = bool(separator) or name == "localhost"
    return name in ("*", host) or (not alone and host.endswith(f".{name}"))


def _without_port(text: str) -> tuple[str, str]:
    name, colon, port = text.rpartition(":")
    return (
        (name, port) if colon and port.isdigit() and (":" not in name or name.endswith("]")) else (text, "")
    )


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        return None
