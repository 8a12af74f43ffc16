"""Looking up events where they lie finds what a join over everything finds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.staging import lookups
from spark_jobs.staging.events import PAID, TIMEOUTS, Code
from spark_jobs.staging.lookups import (
    ORDER_EVENTS,
    events_in,
    names_of,
    orders_of_timers,
    rows_where,
    unnamed_cancels,
)
from spark_jobs.staging.staged import EVENTS, ROW_BITS, SCHEMAS, Staged

ORDERS, PARTS, EVENTS_PER_PART, ROWS_PER_GROUP = 60, 5, 400, 64
Row = dict[str, Any]


class StagedShop:
    """Events of orders, by chance, in the files of a staged log, and as lists."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.staged, self.random = Staged(folder, PARTS), Random(seed)
        self.named: list[Row] = []
        self.unnamed: list[Row] = []
        self.orders: dict[int, str] = {}
        for name in SCHEMAS:
            (folder / name).mkdir()
        for part in range(PARTS):
            self._write_part(part)
        (folder / "facts" / ".000009.parquet").write_bytes(b"not finished")

    def _write_part(self, part: int) -> None:
        ids = self.random.sample(range(ORDERS), 20)
        rows = {f"o{order}": (part << ROW_BITS) + place for place, order in enumerate(ids)}
        self.orders |= {row: order_id for order_id, row in rows.items()}
        made = [self._event(part, place) for place in range(EVENTS_PER_PART)]
        named = [event | {"order_row": self.random.choice([*rows.values()])} for event in made]
        unnamed = [event for event in named if event["code"] != Code.TIMER and self.random.random() < 0.4]
        named = [event for event in named if event not in unnamed]
        facts = [{"order_id": order_id, "order_row": row} for order_id, row in rows.items()]
        self.random.shuffle(facts)
        self._write("facts", part, facts)
        if part != 2:  # a part of which everything is about pushes has facts and no such event
            self.named += named
            self._write("events", part, named)
        if part != 3:
            self.unnamed += unnamed
            self._write("unnamed", part, [event | {"order_row": None} for event in unnamed])

    def _event(self, part: int, place: int) -> Row:
        offset = (part * EVENTS_PER_PART + place) * 100
        ref = self.random.randrange(offset + 1) // 100 * 100 if self.random.random() < 0.7 else -1
        codes = Code.HALF, Code.TIMER, Code.TIMER, Code.CANCEL, Code.CALLED_OFF, Code.COMMIT, Code.ASKED
        code = self.random.choice(codes)
        topic = self.random.choice([TIMEOUTS, TIMEOUTS, TIMEOUTS, PAID, -1])
        return {
            "code": int(code), "topic": topic, "physical_offset": offset,
            "store_ms": offset + 7, "ref": ref, "due_ms": -1, "queue": self.random.randrange(1 << 50),
        }  # fmt: skip

    def _write(self, name: str, part: int, rows: list[Row]) -> None:
        table = pa.Table.from_pylist(rows, SCHEMAS[name])
        path = self.staged.path(name) / f"{part:06d}.parquet"
        pq.write_table(table, path, row_group_size=ROWS_PER_GROUP)

    def events(self, wanted: Iterable[str]) -> list[Row]:
        """The events of some orders, found by looking at all."""
        ids = set(wanted)
        found = [event | {"order_id": self.orders[event["order_row"]]} for event in self.named]
        found = [event for event in found if event["order_id"] in ids]
        anchors = [event for event in found if event["code"] in (Code.HALF, Code.TIMER)]
        about = {
            one["physical_offset"]: {"order_id": one["order_id"], "topic": one["topic"]} for one in anchors
        }
        found += [event | about[event["ref"]] for event in self.unnamed if event["ref"] in about]
        return [{name: event[name] for name in ORDER_EVENTS.names} for event in found]


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def looked_up(shop: StagedShop, ids: Iterable[str], folder: Path, parts_per_task: int) -> list[Row]:
    """The events of some orders whose ids lie in two files, by tasks of so many parts."""
    folder.mkdir()
    listed = list(ids)
    for number, some in enumerate((listed[:7], listed[7:])):
        pq.write_table(pa.table({"order_id": pa.array(some, pa.string())}), folder / f"{number}.parquet")
    names = names_of(shop.staged, "facts")
    turns = [names[first : first + parts_per_task] for first in range(0, len(names), parts_per_task)]
    tables = [found for turn in turns for found in events_in(shop.staged, turn, folder)]
    return [
        row for table in tables for row in table.select(ORDER_EVENTS.names).cast(ORDER_EVENTS).to_pylist()
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("parts_per_task", [1, 3, PARTS])
def test_few_orders_and_all_orders_have_the_events_that_a_join_gives(
    tmp_path: Path, seed: int, parts_per_task: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "staged").mkdir()
    shop = StagedShop(tmp_path / "staged", seed)
    everybody = sorted(set(shop.orders.values()))
    for count in (0, 1, 5, len(everybody)):
        monkeypatch.setattr(lookups, "IDS_PER_TURN", Random(count).choice([1, 10, 500_000]))
        ids = shop.random.sample(everybody, count)
        found = looked_up(shop, [*ids, "nobody"], tmp_path / f"ids-{count}", parts_per_task)
        assert in_order(found) == in_order(shop.events(ids))
    assert any(event["ref"] in {one["physical_offset"] for one in shop.named} for event in shop.unnamed)


@pytest.mark.parametrize("seed", range(4))
def test_orders_of_deadlines_that_nameless_records_cancelled(tmp_path: Path, seed: int) -> None:
    shop = StagedShop(tmp_path, seed)
    cancels = (Code.CANCEL, Code.CALLED_OFF)
    refs = {one["ref"] for one in shop.unnamed if one["code"] in cancels and one["topic"] == TIMEOUTS}
    timers = [one for one in shop.named if (one["code"], one["topic"]) == (Code.TIMER, TIMEOUTS)]
    expected = {shop.orders[one["order_row"]] for one in timers if one["physical_offset"] in refs}
    assert expected, "the seed makes some"
    found = orders_of_timers(shop.staged, names_of(shop.staged, "facts"), unnamed_cancels(shop.staged))
    assert {row["order_id"] for table in found for row in table.to_pylist()} == expected


def test_only_row_groups_that_can_have_a_row_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.parquet"
    offsets = np.arange(0, 1_000, 10)
    rows = [dict.fromkeys(EVENTS.names, 1) | {"physical_offset": offset} for offset in offsets.tolist()]
    pq.write_table(pa.Table.from_pylist(rows, EVENTS), path, row_group_size=10)
    read: list[int] = []
    real = pq.ParquetFile.read_row_group

    def noted(file: Any, group: int, *args: Any, **named: Any) -> pa.Table:
        read.append(group)
        return real(file, group, *args, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    (found,) = rows_where(path, "physical_offset", np.array([250, 405, 2_000]), ["physical_offset", "ref"])
    assert found.to_pylist() == [{"physical_offset": 250, "ref": 1}]
    assert read == [2, 2, 4], "the other columns only where something is"
    assert list(rows_where(tmp_path / "none.parquet", "ref", np.array([1]), ["ref"])) == []
