"""The connection `llm_default` and the pools, in Airflow's database, which the first container of a deployment may write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.starter.endpoint import CONNECTION, yours
from airflow_llm_provider.starter.pools import pools

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["create_pools", "set_connection"]


def set_connection(environment: Mapping[str, str]) -> str:
    """Create the connection, or bring it up to date, and say so; leave it alone when no endpoint is given.

    What the environment does not say stays as somebody has set it in the UI, the limits above all.

    :param environment: where LLM_BASE_URL, LLM_API_KEY and LLM_MODEL are looked up.
    :raises LLMInputError: when only a part of an endpoint is given.
    """
    endpoint = yours(environment)
    if endpoint is None:
        return (
            f"No endpoint is given: set LLM_BASE_URL or LLM_API_KEY, and LLM_MODEL, or make the connection {CONNECTION} in "
            "the UI. Until then the tasks say that it does not exist"
        )
    # They load all of Airflow, which the other commands need not pay for.
    from airflow.models.connection import Connection  # noqa: PLC0415, TID251
    from airflow.utils.session import create_session  # noqa: PLC0415, TID251

    with create_session() as session:
        connection = session.query(Connection).filter_by(conn_id=CONNECTION).one_or_none()
        if connection is None:
            connection = Connection(conn_id=CONNECTION)
            session.add(connection)
        connection.conn_type, connection.host = "llm", endpoint.base_url
        connection.password = endpoint.api_key
    return f"The connection {CONNECTION} leads to {endpoint.base_url}"


def create_pools() -> str:
    """Create the pools of the package that are not there; one that is there keeps the slots that somebody gave it."""
    from airflow.models.pool import Pool  # noqa: PLC0415, TID251 -- as above
    from airflow.utils.session import create_session  # noqa: PLC0415, TID251

    said = []
    with create_session() as session:
        for name, fields in pools().items():
            pool = Pool.get_pool(name, session=session)
            if pool is None:
                pool = Pool(pool=name, **fields)
                session.add(pool)
            said.append(f"The pool {name} has {pool.slots} slots")
    return "; ".join(said)
