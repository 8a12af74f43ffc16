"""Times of rows that are hours away from their messages are told before the findings."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.inputs.mapping import SHOP, as_mapping
from spark_jobs.report.zones import wrong_zone

HOUR_MS = 3_600_000
SENT_MS = 1_795_870_991_519
TIMES = pa.schema([("placed_ms", pa.int64()), ("half_ms", pa.int64()), ("committed_ms", pa.int64())])


def orders(folder: Path, *ahead_ms: int | None) -> Path:
    """Orders whose rows are so far ahead of their messages, which were sent a minute and a bit apart."""
    sent = [SENT_MS + 61_000 * number for number in range(len(ahead_ms))]
    placed = [None if ahead is None else at + ahead for at, ahead in zip(sent, ahead_ms, strict=True)]
    half = [None if number % 2 else at for number, at in enumerate(sent)]
    pq.write_table(pa.table([placed, half, sent], schema=TIMES), folder / "part.parquet")
    return folder


@pytest.mark.parametrize(
    ("ahead_ms", "said"), [(HOUR_MS - 40, "1 h after"), (-5.5 * HOUR_MS, "5.5 h before")]
)
def test_rows_hours_from_their_messages_are_told_with_the_zone(
    tmp_path: Path, ahead_ms: float, said: str
) -> None:
    own = as_mapping({"orders": {"table": "visit", "placed_ms": "made_on", "zone": "+02:00"}}, "own")
    (sentence,) = wrong_zone(orders(tmp_path, *[int(ahead_ms)] * 9, None, 5), own)
    assert sentence.startswith(f"In 9 of 10 orders made_on of table visit is {said} the order's message.")
    assert "for +02:00: correct zone in [orders]" in sentence


def test_a_run_without_orders_has_none_to_tell(tmp_path: Path) -> None:
    assert wrong_zone(tmp_path, SHOP) == []


def test_both_offsets_of_a_zone_that_changes_are_one_fault(tmp_path: Path) -> None:
    (sentence,) = wrong_zone(orders(tmp_path, *[HOUR_MS] * 4, *[2 * HOUR_MS] * 5), SHOP)
    assert sentence.startswith("In 9 of 9 orders placed_ms of table orders is 2 h after")
    assert "for UTC" in sentence


@pytest.mark.parametrize("ahead_ms", [[], [None], [HOUR_MS], [0] * 9, [HOUR_MS] * 5 + [0] * 5, [400_000] * 9])
def test_rows_of_the_time_of_their_messages_are_not_told(tmp_path: Path, ahead_ms: list[int | None]) -> None:
    assert wrong_zone(orders(tmp_path, *ahead_ms), SHOP) == []
