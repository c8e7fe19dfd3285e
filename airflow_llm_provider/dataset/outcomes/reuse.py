"""Answers that a shard need not pay for again: its own from earlier tries, and those of older shards."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.arrow.text import clean
from airflow_llm_provider.dataset.files.layout import JOURNALS, RESULTS, Layout
from airflow_llm_provider.dataset.files.storage import BrokenFileError
from airflow_llm_provider.dataset.outcomes.journal import JournalContent, read_journal
from airflow_llm_provider.dataset.outcomes.record import Record, is_answered
from airflow_llm_provider.dataset.outcomes.results import read_results_file, records_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_llm_provider.dataset.plans.shard_entry import ShardEntry
    from airflow_llm_provider.dataset.plans.shards import ShardKeys

Key = tuple[bytes, int]
Mark = tuple[bytes, str | None, float | None, str | None]


@dataclass(frozen=True, kw_only=True)
class KnownAnswers:
    """The paid answers to a shard's requests.

    :param answers: by fingerprint and occurrence. Only the text is kept: judge it again.
    :param warnings: what was damaged, for the log.
    :param journal: the shard's own; its files are to be removed when the results are written.
    """

    answers: dict[Key, Record]
    warnings: list[str]
    journal: JournalContent


def known_answers(layout: Layout, entry: ShardEntry, keys: ShardKeys) -> KnownAnswers:
    """Collect what a shard need not ask again.

    The shard's own answers keep their rows. The other rows take the older shards' answers to the same request in
    order, each another one.

    :raises LLMStateError: when the storage cannot be read: unknown is not absent.
    """
    warnings: list[str] = []
    own, journal = _stored(layout, entry.shard_id, warnings)
    answers: dict[Key, Record] = {}
    if not own and not entry.donors:
        return KnownAnswers(answers=answers, warnings=warnings, journal=journal)
    wanted = {
        (fingerprint, occurrence)
        for fingerprint, occurrence in zip(keys.fingerprints, keys.occurrences, strict=True)
        if fingerprint is not None
    }
    for record in own:
        if record.key in wanted:
            answers.setdefault(record.key, record)
    missing = wanted - answers.keys()
    if missing and entry.donors:
        answers.update(_from_donors(layout, entry.donors, missing, answers.values(), warnings))
    return KnownAnswers(answers=answers, warnings=warnings, journal=journal)


def forget_answers(layout: Layout) -> None:
    """Delete every stored answer of a destination, so that all rows are asked and paid for again."""
    layout.storage.delete_folder(RESULTS)
    layout.storage.delete_folder(JOURNALS)


def _stored(layout: Layout, shard_id: str, warnings: list[str]) -> tuple[list[Record], JournalContent]:
    """Return a shard's paid answers, finished ones first, and its journal."""
    records: list[Record] = []
    try:
        table = read_results_file(layout, shard_id)
        if table is not None:
            records.extend(records_of(table))
    except BrokenFileError as error:
        warnings.append(f"{error}; rows that no journal holds either are asked again")
    journal = read_journal(layout, shard_id)
    records.extend(journal.records)
    if journal.corrupt:
        warnings.append(
            f"the journal of shard {shard_id} has {journal.corrupt} torn or damaged lines; only their rows are asked "
            "again"
        )
    return [record for record in records if is_answered(record.outcome)], journal


def _from_donors(
    layout: Layout, donors: Iterable[str], missing: set[Key], own: Iterable[Record], warnings: list[str]
) -> dict[Key, Record]:
    """Give the missing rows answers of older shards, none of which another row of the shard has."""
    fingerprints = {fingerprint for fingerprint, _ in missing}
    pool: dict[bytes, list[Record]] = defaultdict(list)
    taken = Counter(_mark(record) for record in own)
    for donor in donors:
        records, _ = _stored(layout, donor, warnings)
        # Results and journal may hold the same answer.
        stored = {
            (record.key, _mark(record)): record
            for record in reversed(records)
            if record.fingerprint in fingerprints
        }
        held: Counter[Mark] = Counter()
        for (_, mark), record in sorted(stored.items(), key=lambda item: item[1].occurrence):
            # An answer that was itself reused lies in several shards, and is still one answer.
            held[mark] += 1
            if held[mark] > taken[mark]:
                taken[mark] = held[mark]
                pool[record.fingerprint].append(record)
    answers: dict[Key, Record] = {}
    for fingerprint, rows in groupby(sorted(missing), key=itemgetter(0)):
        answers.update(zip(rows, pool[fingerprint], strict=False))
    return answers


def _mark(record: Record) -> Mark:
    """Return what tells answers to the same request apart."""
    outcome = record.outcome
    # As results files hold it, and journals do not.
    text = None if outcome.text is None else clean(outcome.text)
    return record.fingerprint, outcome.request_id, outcome.latency_ms, text
