"""Input files in groups, to be counted and cut by many tasks: listed once, then frozen."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from airflow_llm_provider.dataset.drafting.packing import Budget, Packer, Weights, pack, smallest_budget
from airflow_llm_provider.dataset.files.urls import Resolver, public_uri
from airflow_llm_provider.dataset.plans.plan import SplitSettings
from airflow_llm_provider.dataset.sources.listing import SourceFile
from airflow_llm_provider.dataset.sources.reading import Reading
from airflow_llm_provider.dataset.sources.source import Known, Source
from airflow_llm_provider.errors import LLMInputError, LLMStateError
from airflow_llm_provider.spec import CompletionSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_llm_provider.dataset.files.layout import Layout

#: Version of the file.
LISTING_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Input files as they were listed, in groups of neighbours, and all that counting them takes.

    :param spec: what is asked.
    :param settings: how the rows are cut.
    :param bound: what sets ``settings.max_shards``, as a person knows it.
    :param url: the source.
    :param known: the files, and what was found out about all of them.
    :param reading: what is read of the files, and how.
    :param groups: number of files in each group.
    """

    spec: CompletionSpec
    settings: SplitSettings
    bound: str
    url: str
    known: Known
    reading: Reading
    groups: tuple[int, ...]

    @property
    def listing_id(self) -> str:
        """Hash of the content: the same files and settings give the same groups under the same names."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def name(self, index: int) -> str:
        """Return the name under which a group's rows lie."""
        return f"{self.listing_id}-{index:04d}"

    def files(self, index: int) -> tuple[SourceFile, ...]:
        """Return the files of one group."""
        first = sum(self.groups[:index])
        return self.known.files[first : first + self.groups[index]]

    def open(self, index: int | None, resolver: Resolver) -> Source:
        """Open the files of one group; ``None``: all files. Nothing is listed, and no other file opened."""
        files = self.known.files if index is None else self.files(index)
        known = dataclasses.replace(self.known, files=files)
        return self.reading.open(self.url, resolver=resolver, known=known)

    def to_json(self) -> dict[str, Any]:
        """Return the listing as plain JSON values."""
        return {
            "listing_version": LISTING_VERSION,
            "spec": self.spec.to_json(),
            "settings": dataclasses.asdict(self.settings),
            "bound": self.bound,
            "url": self.url,
            "root": self.known.root,
            "format": self.known.format,
            "facts": dict(self.known.facts),
            "reading": self.reading.to_json(),
            "groups": list(self.groups),
            "files": [dataclasses.asdict(file) for file in self.known.files],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Rebuild a listing."""
        files = tuple(
            SourceFile(**{**file, "partitions": tuple((name, part) for name, part in file["partitions"])})
            for file in value["files"]
        )
        return cls(
            spec=CompletionSpec.from_json(value["spec"]),
            settings=SplitSettings(**value["settings"]),
            bound=value["bound"],
            url=value["url"],
            known=Known(root=value["root"], files=files, format=value["format"], facts=value["facts"]),
            reading=Reading.from_json(value["reading"]),
            groups=tuple(value["groups"]),
        )


def group_files(sizes: Sequence[int], *, most_bytes: int, most_groups: int | None) -> tuple[int, ...]:
    """Gather neighbouring files until they would have more than ``most_bytes``; a larger one is a group of its own.

    So files that are added at the end leave the groups before them as they are. More groups than there may be are made
    fewer by the smallest larger size that does.

    :param sizes: bytes of each file, in order.
    :return: number of files in each group.
    """
    counts = np.asarray(sizes, dtype=np.int64)
    packer = Packer(Budget(tokens=most_bytes))
    packer.add(counts, np.zeros_like(counts))
    cuts = packer.finish()
    if most_groups is not None and len(cuts) > most_groups:
        weights = Weights()
        try:
            weights.add(counts, np.zeros_like(counts))
            fitting = smallest_budget(weights, Budget(tokens=most_bytes), most_groups)
            cuts = pack(weights, Budget(tokens=fitting or weights.tokens)) or ()
        finally:
            weights.close()
    return tuple(cut.rows for cut in cuts)


def write_listing(layout: Layout, listing: Listing) -> str:
    """Write a listing and return its id."""
    listing_id = listing.listing_id
    layout.storage.write_bytes(layout.listing(listing_id), json.dumps(listing.to_json()).encode())
    return listing_id


def read_listing(layout: Layout, listing_id: str) -> Listing:
    """Read a listing.

    :raises LLMStateError: when it is missing, damaged, or of another version.
    """
    remedy = "clear the task that lists the files and everything after it"
    name = layout.listing(listing_id)
    data = layout.storage.read_bytes(name)
    uri = public_uri(layout.uri(name))
    if data is None:
        raise LLMStateError(f"the list of input files {uri} is missing: {remedy}")
    try:
        value = json.loads(data)
        if value["listing_version"] != LISTING_VERSION:
            raise LLMStateError(
                f"the list of input files {uri} has version {value['listing_version']!r}, this version of "
                f"airflow-llm-provider reads {LISTING_VERSION}: {remedy}"
            )
        return Listing.from_json(value)
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, LLMInputError):
            raise
        raise LLMStateError(
            f"the list of input files {uri} is damaged ({type(error).__name__}): {remedy}"
        ) from error
