"""Which messages may have been passed over, and what decides it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.books.fifo import done_of_groups, left_open
from spark_jobs.staging.acknowledged import Places
from spark_jobs.staging.events import CREATED, PAID, QUEUE_BITS, TIMEOUTS
from spark_jobs.staging.lookups import names_of
from spark_jobs.staging.staged import SCHEMAS, Staged

Row = dict[str, Any]
QUEUES, PLACES = 3, 12


@pytest.mark.parametrize("seed", range(6))
def test_open_places_before_acknowledged_ones_and_the_others_of_their_groups(
    seed: int, tmp_path: Path
) -> None:
    random = Random(seed)
    done = {
        topic: {(queue, place) for queue in range(QUEUES) for place in range(PLACES) if random.random() < 0.7}
        for topic in (CREATED, TIMEOUTS)
    }
    acknowledged = {topic: places([place_of(*one) for one in ones]) for topic, ones in done.items()}
    rows = [
        {"topic": topic, "queue": place_of(queue, place)[0], "message_group": f"g{random.randrange(9)}",
         "order_id": f"o{random.randrange(99)}"}
        for topic in (CREATED, TIMEOUTS, PAID) for queue in range(QUEUES) for place in range(PLACES)
    ]  # fmt: skip
    staged = staged_in_parts(tmp_path / "staged", rows, random)
    names = names_of(staged, "grouped")

    def is_done(row: Row) -> bool:
        return bool(acknowledged[row["topic"]].has(np.array([row["queue"]]))[0])

    of_shop = [row for row in rows if row["topic"] in acknowledged]
    last: dict[Any, int] = {}
    for row in filter(is_done, of_shop):
        last[row["topic"], row["queue"] >> QUEUE_BITS] = row["queue"]
    still_open = [
        row for row in of_shop
        if not is_done(row) and row["queue"] < last[row["topic"], row["queue"] >> QUEUE_BITS]
    ]  # fmt: skip
    assert in_order(left_open(staged, acknowledged, names)) == in_order([pa.Table.from_pylist(still_open)])
    (tmp_path / "open").mkdir()
    pq.write_table(pa.Table.from_pylist(still_open, SCHEMAS["grouped"]), tmp_path / "open" / "0.parquet")
    groups = {row["message_group"] for row in still_open}
    expected = [row for row in of_shop if is_done(row) and row["message_group"] in groups]
    found = done_of_groups(staged, acknowledged, tmp_path / "open", names)
    assert in_order(found) == in_order([pa.Table.from_pylist(expected)])


def staged_in_parts(folder: Path, rows: list[Row], random: Random) -> Staged:
    """The messages of three parts."""
    (folder / "grouped").mkdir(parents=True)
    parts: list[list[Row]] = [[], [], []]
    for row in rows:
        random.choice(parts).append(row)
    for number, its in enumerate(parts):
        table = pa.Table.from_pylist(its, SCHEMAS["grouped"])
        pq.write_table(table, folder / "grouped" / f"{number:06d}.parquet", row_group_size=7)
    return Staged(folder)


def place_of(queue_id: int, offset: int) -> tuple[int, int]:
    """The one place of a queue, and the one behind it."""
    place = (queue_id << QUEUE_BITS) | offset
    return place, place + 1


def places(ranges: list[tuple[int, int]]) -> Places:
    firsts, ends = np.array(ranges, np.int64).T
    return Places.merged(firsts, ends)


def in_order(tables: Any) -> list[Any]:
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted((row["topic"], row["queue"], row["message_group"], row["order_id"]) for row in rows)
