"""A few made-up support tickets for every day of the last week, so that `nightly_tickets` has something to label."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["sample_tickets", "write_sample_tickets"]

_DAYS = 8
_TICKETS = (
    ("Charged twice", "My card was charged twice for order {n}. Please refund one of the payments."),
    ("Cannot log in", "The reset link says it has expired. This is the third time today!"),
    ("Where is my parcel?", "Order {n} was due on Monday. The tracking page has shown nothing for a week."),
    ("App closes by itself", "Since the update the app closes as soon as I open the basket (order {n})."),
    ("Thank you", "Just a note that the new chair from order {n} is lovely. No reply needed."),
    ("Invoice for my company", "Could you add our VAT number to the invoice of order {n}?"),
)


def sample_tickets(day: date) -> list[dict[str, object]]:
    """Return the tickets of one day: the same for the same day.

    :param day: the day.
    """
    first = day.toordinal() * 100
    return [
        {"id": first + index, "subject": subject, "body": body.format(n=first + index)}
        for index, (subject, body) in enumerate(_TICKETS)
    ]


def write_sample_tickets(folder: Path, *, today: date | None = None) -> None:
    """Write the partitions `ds=<date>` of the last week, today included; existing ones stay.

    :param folder: folder of the partitions.
    :param today: the last day.
    """
    import pyarrow as pa  # noqa: PLC0415 - 40 MB, needed by `up` alone
    import pyarrow.parquet as pq  # noqa: PLC0415

    last = today or datetime.now(UTC).date()
    for day in (last - timedelta(days=back) for back in range(_DAYS)):
        path = folder / f"ds={day.isoformat()}" / "tickets.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(sample_tickets(day)), path)
