"""What a lease says: who works on which part of a destination, since when, and until when that holds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from airflow_llm_provider.dataset.files.layout import LEASES
from airflow_llm_provider.dataset.leases.process import ProcessId

#: Version of a lease file.
_VERSION = 1
_SUFFIX = ".json"
#: Stands for "no plan" and "no shard" in a name.
_NONE = "-"


class Work(StrEnum):
    """What is done with a destination."""

    SPLIT = "split"
    #: A split that forgets every stored answer.
    START_OVER = "restart"
    COMPLETE = "complete"
    MERGE = "merge"


class Standing(StrEnum):
    """How far a lease has come."""

    #: Written down, while its writer looks for others.
    CLAIMED = "claimed"
    #: Nobody else is there.
    HELD = "held"
    #: Its process is done, and the same run will go on soon.
    LEFT = "left"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who works, in words for a person.

    :param run: the run, such as ``run manual__2026-11-30 of DAG nightly``: all tasks of a run say the same.
    :param task: the task of the run; empty: there are no tasks.
    :param key: what else tells runs of the same words apart.
    """

    run: str
    task: str = ""
    key: str = ""

    @classmethod
    def of_process(cls) -> Self:
        """Return an owner that is this process: for those who are no task of a run."""
        own = ProcessId.own()
        return cls(run=str(own), key=f"{own.system} {own.started}")

    @property
    def digest(self) -> str:
        """Hash of the run."""
        identity = f"{self.run}\n{self.key}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(identity, digest_size=6).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a lease is for. All of it is in the file's name, so that most leases need not be read.

    :param run: digest of the owner's run.
    :param plan: the plan that is worked on; empty: none yet.
    :param shard: the shard that is worked on; empty: no single one.
    """

    work: Work
    run: str
    plan: str = ""
    shard: str = ""

    def name(self, token: str) -> str:
        """Return the name of the lease file of one holder."""
        parts = (self.work.value, self.run, self.plan or _NONE, self.shard or _NONE, token)
        return f"{LEASES}/{'.'.join(parts)}{_SUFFIX}"

    @classmethod
    def of_name(cls, name: str) -> tuple[Self, str] | None:
        """Return what a lease file's name says, and its token; ``None``: it is no lease."""
        parts = name.removeprefix(f"{LEASES}/").removesuffix(_SUFFIX).split(".")
        if not name.endswith(_SUFFIX) or len(parts) != 5 or parts[0] not in set(Work):  # noqa: PLR2004
            return None
        work, run, plan, shard, token = parts
        plan, shard = plan.replace(_NONE, ""), shard.replace(_NONE, "")
        return cls(work=Work(work), run=run, plan=plan, shard=shard), token

    def excludes(self, other: Scope) -> bool:
        """Tell whether the two must not be worked on at the same time. Symmetric."""
        works = {self.work, other.work}
        if Work.START_OVER in works:
            return True
        if Work.SPLIT in works:
            # A run that was cleared may split again while its earlier tasks are still ending.
            return self.run != other.run
        if works == {Work.COMPLETE}:
            # Shards of one plan share no row; those of two plans mostly do.
            return self.plan != other.plan or self.shard == other.shard
        return works == {Work.MERGE}


@dataclass(frozen=True, kw_only=True)
class Record:
    """Content of a lease file.

    :param since: seconds since 1970, as is ``expires``.
    """

    owner: Owner
    process: ProcessId | None
    standing: Standing
    since: float
    expires: float

    def is_abandoned(self, now: float) -> bool:
        """Tell whether nobody holds the lease any more.

        :param now: seconds since 1970, less what clocks may differ by.
        """
        if now >= self.expires:
            return True
        return self.standing is not Standing.LEFT and self.process is not None and self.process.is_dead()

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        return json.dumps({"lease_version": _VERSION} | dataclasses.asdict(self), indent=2).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Read a file's content; ``None`` when it is damaged, or of another version."""
        try:
            value: Any = json.loads(data)
            if value["lease_version"] != _VERSION:
                return None
            return cls(
                owner=Owner(**value["owner"]),
                process=ProcessId(**value["process"]),
                standing=Standing(value["standing"]),
                since=float(value["since"]),
                expires=float(value["expires"]),
            )
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        process = "" if self.process is None else str(self.process)
        details = [text for text in (self.owner.task, process) if text and text != self.owner.run]
        return f"{self.owner.run} ({', '.join(details)})" if details else self.owner.run
