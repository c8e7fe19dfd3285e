"""Sample tickets."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from airflow_llm_provider.starter.tickets import sample_tickets, write_sample_tickets

if TYPE_CHECKING:
    from pathlib import Path


class TestSampleTickets:
    def test_a_day_has_the_same_tickets_every_time_and_no_other_days(self) -> None:
        first, second = date(2026, 1, 1), date(2026, 1, 2)
        assert sample_tickets(first) == sample_tickets(first)
        assert {ticket["id"] for ticket in sample_tickets(first)}.isdisjoint(
            ticket["id"] for ticket in sample_tickets(second)
        )

    def test_a_week_and_today_are_written_and_kept(self, tmp_path: Path) -> None:
        write_sample_tickets(tmp_path, today=date(2026, 1, 8))
        days = sorted(path.name for path in tmp_path.iterdir())
        assert (days[0], days[-1], len(days)) == ("ds=2026-01-01", "ds=2026-01-08", 8)
        edited = tmp_path / days[0] / "tickets.parquet"
        edited.write_bytes(b"mine")
        write_sample_tickets(tmp_path, today=date(2026, 1, 8))
        assert edited.read_bytes() == b"mine"
