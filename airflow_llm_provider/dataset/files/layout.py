"""Where everything lies below a destination: names only, the same on every storage."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from fsspec.implementations.local import LocalFileSystem

from airflow_llm_provider.dataset.files.local_storage import LocalStorage
from airflow_llm_provider.dataset.files.storage import Storage
from airflow_llm_provider.dataset.files.urls import Resolver, public_uri, reason, refuse_password, resolve
from airflow_llm_provider.errors import LLMError, LLMInputError, LLMStateError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: Written last: while it is there, the part files it names are whole.
MANIFEST = "_manifest.json"
#: The rows without an answer.
REJECTS = "_rejects.parquet"
#: Our own folder; the leading underscore hides it from every reader of the destination.
PRIVATE = "_llm"
#: The merge that replaced the output last, or is about to, and its part files, so that they can be told from a user's.
INTENT = f"{PRIVATE}/output.json"
#: Part files before they are put in place.
STAGING = f"{PRIVATE}/staging"
PLANS = f"{PRIVATE}/plans"
SHARDS = f"{PRIVATE}/shards"
RESULTS = f"{PRIVATE}/results"
JOURNALS = f"{PRIVATE}/journal"
#: Input files as they were listed for many tasks to count, and what each of these counted and cut.
LISTINGS = f"{PRIVATE}/listings"
COUNTED = f"{PRIVATE}/counted"
#: Who works on what at the moment.
LEASES = f"{PRIVATE}/leases"


@dataclass(frozen=True)
class Layout:
    """The names of a destination's files, relative to it.

    :param destination: URL of the output folder.
    :param resolver: finds the filesystem of a URL.
    """

    destination: str
    resolver: Resolver = resolve

    @cached_property
    def storage(self) -> Storage:
        """The storage below the destination."""
        return _open_storage(self.destination, self.resolver)

    def plan(self, plan_id: str) -> str:
        """Name of a plan."""
        return f"{PLANS}/{plan_id}.json"

    def shard(self, shard_id: str) -> str:
        """Name of a shard's input rows."""
        return f"{SHARDS}/{shard_id}.parquet"

    def results(self, shard_id: str) -> str:
        """Name of a finished shard."""
        return f"{RESULTS}/{shard_id}.parquet"

    def journal(self, shard_id: str) -> str:
        """Name of the folder of the answers that a shard has so far."""
        return f"{JOURNALS}/{shard_id}"

    def listing(self, listing_id: str) -> str:
        """Name of a list of input files."""
        return f"{LISTINGS}/{listing_id}.json"

    def counted(self, name: str) -> str:
        """Name of the rows of a group of input files, counted and cut."""
        return f"{COUNTED}/{name}.parquet"

    def count(self, name: str) -> str:
        """Name of what the count of such a group found out."""
        return f"{COUNTED}/{name}.json"

    def part(self, index: int) -> str:
        """Name of an output file."""
        return f"part-{index:05d}.parquet"

    def uri(self, name: str) -> str:
        """Return the URI of a name."""
        return self.storage.uri(name)

    @classmethod
    def of_plan(
        cls, plan: str, *, destination: str | None = None, resolver: Resolver = resolve
    ) -> tuple[Self, str]:
        """Find the destination and the plan id that a shard reference names.

        :param plan: the reference's plan: a URI, or a name relative to the destination when the URI is too long.
        :param destination: URL of the output folder; needed for a relative name, and wins over the URI's.
        """
        root, found, name = plan.rpartition(f"{PLANS}/")
        plan_id = name.removesuffix(".json")
        if not found or not plan_id or "/" in plan_id or not name.endswith(".json"):
            raise LLMInputError(
                f"{public_uri(plan)!r} names no plan: a plan is {{destination}}/{PLANS}/{{id}}.json, as split returns it"
            )
        if destination is None and not root:
            raise LLMInputError(
                f"the shard reference names its plan relative to the destination ({plan}), since the whole URI would "
                "make it too long for XCom: give the same destination to the complete step as to the split"
            )
        return cls(destination or root, resolver), plan_id


def _open_storage(root: str, resolver: Resolver = resolve) -> Storage:
    """Open the storage below ``root``."""
    # Whatever the resolver makes of it: the destination goes into the manifest and into XCom.
    refuse_password(root)
    try:
        fs, path = _outside_of_loops(resolver, root)
    except LLMError:
        # The resolver says itself what is wrong, and whether trying again helps.
        raise
    except Exception as error:
        raise LLMStateError(f"{public_uri(root)} could not be opened: {reason(error)}") from error
    if isinstance(fs, LocalFileSystem):
        # A relative path means another folder to a task that runs elsewhere.
        return LocalStorage(root if ":" in root else path, fs, path)
    return Storage(root, fs, path)


def _outside_of_loops(resolver: Resolver, root: str) -> tuple[AbstractFileSystem, str]:
    """Resolve a URL where no event loop runs: some filesystems start one of their own to look for credentials."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return resolver(root)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="llm-storage") as pool:
        return pool.submit(context.run, resolver, root).result()
