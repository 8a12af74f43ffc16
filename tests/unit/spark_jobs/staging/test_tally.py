"""What is counted of a log: runs of schedules have a lateness, and their bodies are what was promised."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.log.published_log import open_log
from commitlog.records import properties
from commitlog.records.kinds import CANCEL, FIRE, MOVE, TIMER_TOPIC, UNREADABLE, VERB_TOPIC
from commitlog.records.message import Message
from commitlog.records.record import TYPE_COMMIT, Record
from services.broker.timers.timer_records import cancel_record
from spark_jobs.inputs.mapping import SHOP
from spark_jobs.log.scan.walk import Check
from spark_jobs.report.statistics import LogStatistics, log_statistics
from spark_jobs.staging import staged as staging
from spark_jobs.staging.events import Code
from spark_jobs.staging.staged import SCHEMAS, Staged, parts_of, stage_part
from spark_jobs.staging.time_buckets import FINE_SPAN_MS, bucket_starts
from tidewheel import property_names

DUE_MS = 1_763_700_000_000


def run(due_ms: int, late_ms: int, body: object, offset: int) -> Record:
    """A run of the schedule `pushes:daily`, stored so much after its time."""
    pairs = {
        property_names.KEYS: "daily",
        property_names.SCHEDULE: "pushes:daily",
        property_names.OCCURRENCE_MS: str(due_ms),
        property_names.MESSAGE_ID: f"pushes:daily@{due_ms}",
    }
    return record(pairs, body, offset, due_ms + late_ms)


def timer(late_ms: int, push_id: str, offset: int) -> Record:
    """A push that was a delayed message."""
    pairs = {
        property_names.KEYS: push_id,
        property_names.TIMER_OFFSET: "0",
        property_names.DUE_MS: str(DUE_MS),
    }
    return record(pairs, {"push_id": push_id}, offset, DUE_MS + late_ms)


def record(pairs: dict[str, str], body: object, offset: int, store_ms: int) -> Record:
    """A message of the pushes."""
    return Record(
        topic="pushes",
        body=json.dumps(body).encode(),
        properties=properties.encode(pairs),
        queue_offset=offset,
        store_ms=store_ms,
    )


def figures_of(store: Path, folder: Path) -> LogStatistics:
    """The statistics of a log, read as the audit reads it."""
    return log_statistics(staged_of(store, folder))


def staged_of(store: Path, folder: Path) -> Staged:
    """A log as the audit reads it."""
    log = open_log(store)
    parts = parts_of(store, log)
    staged = Staged(folder, len(parts))
    for name in SCHEMAS:
        staged.path(name).mkdir(parents=True)
    for number, part in enumerate(parts):
        stage_part(number, part, Check.BODY, SHOP, staged)
    return staged


def test_a_run_of_a_schedule_is_readable_and_has_a_lateness_of_its_own(
    write_log: Callable[..., Path], tmp_path: Path
) -> None:
    fine = {"push_id": "daily", "schedule_id": "daily", "text": "hello"}
    records = [
        timer(3, "once", 0),
        run(DUE_MS, 5, fine, 1),
        run(DUE_MS + 1_000, 7, {"text": "first", "push_id": "daily"}, 2),
    ]
    figures = figures_of(write_log(records), tmp_path / "staged")
    assert figures.unreadable == 0
    late = {one.topic: (one.deliveries, one.p50_ms, one.max_ms) for one in figures.lateness}
    assert late == {"pushes": (1, 3, 3), "pushes, by a schedule": (2, 5, 7)}
    assert figures.messages_by_topic == {"pushes": sum(one.deliveries for one in figures.lateness)}


def test_a_run_whose_body_names_another_is_not_what_was_promised(
    write_log: Callable[..., Path], tmp_path: Path
) -> None:
    records = [run(DUE_MS, 0, {"push_id": "weekly"}, 0), run(DUE_MS + 1_000, 0, "text", 1)]
    figures = figures_of(write_log(records), tmp_path / "staged")
    assert (figures.unreadable, len(figures.unreadable_samples)) == (2, 2)


@pytest.mark.parametrize(("seconds", "bar_ms"), [(60, 1_000), (300, 5_000), (1_200, 15_000), (2_400, 60_000)])
def test_a_short_log_has_as_many_bars_and_points_as_a_long_one(
    seconds: int, bar_ms: int, write_log: Callable[..., Path], tmp_path: Path
) -> None:
    """A run of a minute was one bar and one dot."""
    records = [timer(1_000 * second, f"push-{second}", second) for second in range(seconds)]
    figures = figures_of(write_log(records), tmp_path / "staged")
    assert (figures.bar_ms, figures.point_ms) == (bar_ms, bar_ms)
    assert abs(len(figures.bars) - 1_000 * seconds // bar_ms) <= 1
    assert len(figures.lateness_over_time) == len(figures.bars)
    assert sum(figures.bars.values()) == sum(one.deliveries for one in figures.lateness_over_time) == seconds


@given(st.lists(st.integers(0, 1 << 45), max_size=30))
def test_times_are_floored_to_one_width_that_their_span_allows(times: list[int]) -> None:
    starts = bucket_starts(np.array(times, np.int64))
    is_short = bool(times) and max(times) - min(times) <= FINE_SPAN_MS
    assert starts.tolist() == [ms - ms % (1_000 if is_short else 60_000) for ms in times]


def test_orders_have_their_ids_whole_whatever_blanks_these_have(
    write_log: Callable[..., Path], tmp_path: Path
) -> None:
    keys = [("ORD 17",), ("ORD 17", "gift"), ("ORD", "17"), (" 7  8 ",), ("plain",), ("a\u00a0b",)]
    messages = [Message(topic="order-created", body=b"{}", message_id="M", keys=one) for one in keys]
    records = [Record("order-created", b"{}", properties.encode_message(one)) for one in messages]
    staged = staged_of(write_log(records), tmp_path / "staged")
    ids = {one["order_id"]: one["redriven"] for one in staged.table("facts").to_pylist()}
    assert ids == {"ORD 17": 2, "ORD": 1, " 7  8 ": 1, "plain": 1, "a\u00a0b": 1}


def test_a_cancel_by_a_call_is_told_from_one_that_a_message_carries(
    write_log: Callable[..., Path], tmp_path: Path
) -> None:
    carrying = {property_names.KEYS: "17", property_names.CANCELS: "4711 1764277200000"}
    paid = Record("order-paid", b"{}", properties.encode(carrying), sys_flag=TYPE_COMMIT)
    call = cancel_record(4711, DUE_MS, "order-timeouts", "M", "by mistake")
    staged = staged_of(write_log([paid, call]), tmp_path / "staged")
    named, unnamed = staged.table("events").to_pylist(), staged.table("unnamed").to_pylist()
    assert [one["code"] for one in named] == [Code.COMMIT, Code.CANCEL]
    assert [(one["code"], one["ref"]) for one in unnamed] == [(Code.CALLED_OFF, 4711)]


def delayed(random: Random, came: Counter[tuple[str, int, int]]) -> Iterator[Record]:
    """Timers and their deliveries in the order of time; `came` gets what is delivered, by topic and minute
    and by how late it was.
    """
    happen = []
    for number in range(60):
        due_ms = DUE_MS + 1_000 * random.randrange(300)
        set_ms = due_ms + random.choice((-30_000, -1, 0, 1, 70_000))
        happen.append((set_ms, number, due_ms))
        if random.random() < 0.8:
            happen.append((max(due_ms, set_ms) + random.choice((0, 3, 90_000)), number, due_ms))
    timers: dict[int, Record] = {}
    for ms, number, due_ms in sorted(happen, key=lambda one: one[0]):
        topic, is_moved = f"topic-{number % 3}", number % 5 == 0
        pairs = {property_names.DUE_MS: str(due_ms), property_names.KEYS: str(number)}
        if number not in timers:
            moved = {property_names.VERB: MOVE, property_names.REPLACES: "0"} if is_moved else {}
            stored = properties.encode(pairs | {property_names.REAL_TOPIC: topic} | moved)
            timers[number] = Record(topic=TIMER_TOPIC, body=b"", properties=stored, store_ms=ms)
            yield timers[number]
        else:
            offset = {property_names.TIMER_OFFSET: str(timers[number].physical_offset)}
            since_ms = due_ms if is_moved else max(due_ms, timers[number].store_ms)
            came[topic, ms - ms % 60_000, ms - since_ms] += 1
            yield Record(topic=topic, body=b"", properties=properties.encode(pairs | offset), store_ms=ms)


@pytest.mark.parametrize("slice_bytes", [400, 4_000, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_a_timer_that_was_set_after_its_time_is_late_from_its_setting(
    seed: int,
    slice_bytes: int,
    write_log: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever the log is cut between a timer and its delivery."""
    monkeypatch.setattr(staging, "SLICE_BYTES", slice_bytes)
    came: Counter[tuple[str, int, int]] = Counter()
    staged = staged_of(write_log(delayed(Random(seed), came)), tmp_path / "staged")
    found: Counter[tuple[str, int, int]] = Counter()
    for row in staged.lateness().to_pylist():
        minute_ms = row["minute_ms"] - row["minute_ms"] % 60_000  # a short log is counted by the second
        found[row["topic"], minute_ms, row["late_ms"]] += row["deliveries"]
    assert found == came
    assert staged.part_count == 1 or staged.has("carried")


ENDS: dict[str, list[tuple[str, dict[str, str]]]] = {
    "delivered": [("pushes", {property_names.TIMER_OFFSET: "0"})],
    "fired": [("pushes", {property_names.TIMER_OFFSET: "0", property_names.VERB: FIRE})],
    "cancelled": [(VERB_TOPIC, {property_names.VERB: CANCEL}), ("pushes", {property_names.CANCELS: "0"})],
    "unreadable": [(VERB_TOPIC, {property_names.VERB: UNREADABLE})],
    "moved": [(TIMER_TOPIC, {property_names.REPLACES: "0", property_names.VERB: MOVE})],
    "replaced": [(TIMER_TOPIC, {property_names.REPLACES: "0"})],
}
"""What ends a timer, each way in which it is written."""
OTHERS: list[tuple[str, dict[str, str]]] = [("pushes", {}), (TIMER_TOPIC, {property_names.DUE_MS: "1"})]


@pytest.mark.parametrize("slice_bytes", [400, 4_000, 1 << 20])
@pytest.mark.parametrize("seed", range(2))
def test_every_end_of_a_timer_is_counted_once_wherever_the_log_is_cut(
    seed: int,
    slice_bytes: int,
    write_log: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "SLICE_BYTES", slice_bytes)
    random, counts = Random(seed), Counter[str]()
    records = [Record(topic=topic, body=b"", properties=properties.encode(pairs)) for topic, pairs in OTHERS]
    for how, ways in ENDS.items():
        for topic, pairs in ways:
            counts[how] += (many := random.randrange(2, 9))
            records += [Record(topic=topic, body=b"", properties=properties.encode(pairs))] * many
    random.shuffle(records)
    store = write_log([replace(one, queue_offset=at) for at, one in enumerate(records)])
    assert figures_of(store, tmp_path / "staged").timer_ends == counts
