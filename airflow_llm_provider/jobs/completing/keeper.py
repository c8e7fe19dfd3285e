"""Every outcome into the journal, before anything else is done about it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.outcomes.record import Record
from airflow_llm_provider.jobs.completing.duplicates import copy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_llm_provider.dataset.outcomes.journal import JournalWriter
    from airflow_llm_provider.dataset.outcomes.results import ShardResults
    from airflow_llm_provider.dataset.plans.shards import ShardKeys
    from airflow_llm_provider.engine.call import Outcome


class Keeper:
    """Keeps the outcomes of a shard's rows, those of rows with the same request along with it.

    :param outcomes: one per row, to be filled in.
    :param followers: by a row that is asked, the further rows that take its answer.
    :param results: encodes the outcomes, as they come in.
    :param on_copies: hears how many rows took an answer.
    """

    def __init__(
        self,
        journal: JournalWriter,
        keys: ShardKeys,
        outcomes: list[Outcome | None],
        followers: Mapping[int, Sequence[int]],
        *,
        results: ShardResults,
        on_copies: Callable[[int], None],
    ) -> None:
        self._journal = journal
        self._keys = keys
        self._outcomes = outcomes
        self._followers = followers
        self._results = results
        self._on_copies = on_copies
        #: Rows that took another's answer, by row status.
        self.copies: Counter[str] = Counter()

    def keep(self, outcome: Outcome) -> None:
        """Keep how a row ended, and those that end with it.

        A process that dies in between loses nothing: the next try finds the answer and gives it to the others.
        """
        self._keep(outcome)
        followers = self._followers.get(outcome.index)
        if followers:
            for index in followers:
                self._keep(copy_of(outcome, index))
            self.copies[outcome.status.value] += len(followers)
            self._on_copies(len(followers))
        self._results.advance()

    def _keep(self, outcome: Outcome) -> None:
        fingerprint = self._keys.fingerprints[outcome.index]
        assert fingerprint is not None  # noqa: S101 -- rows set aside are never asked
        self._journal.append(Record(fingerprint, self._keys.occurrences[outcome.index], outcome))
        self._outcomes[outcome.index] = outcome
