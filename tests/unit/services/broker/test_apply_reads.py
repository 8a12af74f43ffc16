"""`apply` reads facts and the state: no setting, clock or disk, and no limit that other programs may lack.

What is read is found in the sources (`tests.unit.apply_reads`). Each read is on one of the lists below with
its reason, or is a limit that goes by the version of the log (`commitlog.applied_limits`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest

from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.store import Store
from tests.memory_disk import MemoryDisk
from tests.unit.apply_reads import Core, parsed

ROOTS = [
    *(("Broker", name) for name in ("_apply", "_build_appliers")),
    ("Epoch", "apply"),
    ("Store", "apply"),
    ("Transactions", "publish"),  # open halves, and ended ones
]
PLACES = "where this core keeps it; no table holds the place"
SAID = "records say it: the default of a field that each record has"
SHAPE = "how rows lie in memory, not which"
FORMAT = "of a format: it does not change"
DERIVED = "what is derived of the text that a record says, and is in no table"
WHEEL = "a wheel: it is made with the time of the start, and holds no table"
DAMAGE = "given to a queue that is made, to call where a read finds damage: apply makes it and reads none"
RECENT = "of what this process remembers of lately: a follower fills its own, and no record rests on it"
REASONS = {
    "Broker.store": PLACES,
    "CommitLog.segments": PLACES,
    "ConsumeQueue.key": PLACES,
    "Store.dispatch": PLACES,
    "Timers.ends": PLACES,
    "Timers.partitions": PLACES,
    "CommitLog.first_offset": "state: where the log begins, which a record cuts",
    "ConsumeQueue._written_count": "state: what of the queue's end is written",
    "GroupOffsets.committed_offset": "state: it is made with where the record says",
    "Scheduler._leases": WHEEL,
    "Scheduler._others": WHEEL,
    "Wheel.now_ms": WHEEL,
    "Wheel.__init__(now_ms)": WHEEL,
    "levels.level_of(now_ms)": WHEEL,
    "levels.slot_start_ms(now_ms)": WHEEL,
    "DeferredRows._take()": "makes a row of a snapshot, of the value alone, before it changes",
    "Dispatch._tell_damaged()": DAMAGE,
    "disk.delete": DAMAGE,
    "FilterSet._heard_ms": RECENT,
    "wheel._STALE_MIN": SHAPE,
    "levels.SLOT_COUNT": SHAPE,
    "sorted_offsets.ARRAY_LENGTH_MAX": SHAPE,
    "holding._GONE_MIN": SHAPE,
    "table.GONE_MAX": SHAPE,
    "table.PART_ROWS_MAX": SHAPE,
    "RecentIds._bits": RECENT,
    "RecentIds._durable_offset()": RECENT,
    "RecentIds._first_bit": RECENT,
    "RecentIds._origin": RECENT,
    "limits.RECENT_IDS_SPILLED_MAX": RECENT,
    "recent_ids.BUCKET_BITS_MAX": RECENT,
    "store_times.STEP_MS": RECENT,
    "StoreTimes._moments": RECENT,
    "name_hash.WIDE_HASH_BYTES": FORMAT,
    "entry.ENTRY_BYTES": FORMAT,
    "queue._FILE_BYTES": FORMAT,
    "half._DEFAULT": FORMAT,
    "limits.ATTEMPTS_DEFAULT": SAID,
    "limits.RETRY_AFTER_MS": SAID,
    "limits.CHECK_COUNT_DEFAULT": SAID,
    "limits.CHECK_IMMUNITY_MS": SAID,
    "limits.CHECK_INTERVAL_MS": SAID,
    "limits.CHECK_INTERVAL_MS_MAX": SAID,
    "limits.SCHEDULE_MISSED_COUNT_DEFAULT": SAID,
    "limits.FILTERS_KEPT_MAX": DERIVED,
    "limits.FILTER_CHARACTERS_MAX": DERIVED,
    "limits.FILTER_TAGS_MAX": DERIVED,
    "limits.FILTER_MARKS_MAX": DERIVED,
    "limits.TAG_BYTES_MAX": DERIVED,
}


Applier = Callable[..., Any]


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@pytest.fixture(scope="module")
def appliers() -> list[Applier]:
    """What a broker applies records with, as it is made."""
    broker = Broker.open(MemoryDisk(), BrokerSettings(), 0)
    of_facts = broker._build_appliers().values()
    return list(dict.fromkeys((*of_facts, broker.store.apply, broker.topics.infer_topic)))


def test_every_applier_is_looked_at(core: Core, appliers: list[Applier]) -> None:
    reached = core.reached(ROOTS)
    assert {(type(one.__self__).__name__, one.__name__) for one in appliers} <= reached.keys()
    assert len(reached) > 200, "little is reached: is the walk blind?"


def test_apply_reads_nothing_that_differs_between_processes(core: Core) -> None:
    found = core.reads(ROOTS)
    unexplained = {what: sorted(by) for what, by in found.items() if what not in REASONS}
    assert not unexplained, "put it into the record, or into commitlog/applied_limits.py"


def test_each_reason_is_of_something_that_is_read(core: Core) -> None:
    assert not REASONS.keys() - core.reads(ROOTS).keys()


@pytest.mark.parametrize(
    ("root", "what"),
    [
        (("Timers", "check_room"), "settings.timers_per_topic_max"),
        (("HalfReceipts", "find_receipt"), "settings.dedupe_ms"),
        (("TimerEnds", "is_forgotten"), "TimerEnds._history_ms"),
        (("Transactions", "check_room"), "limits.HALVES_WAITING_MAX"),
        (("Outcomes", "accepts_late_request"), "outcomes.LATE_ENDS_MAX"),
        (("ConsumeQueue", "get"), "disk.read"),
        (("Partitions", "advance"), "Partitions.advance(now_ms)"),
    ],
)
def test_each_kind_of_read_is_found(core: Core, root: tuple[str, str], what: str) -> None:
    assert what in core.reads([root])


MUTANTS = [
    (BrokerSettings, "self.{}.broker_name", "settings.broker_name"),
    (Store, "self.{}.log.read(0)", "disk.read"),
    (Store, "import time; time.time()", "clock"),
    (Store, "self.{}.unknown()", "Store.unknown()"),
]


def test_a_read_that_comes_into_an_applier_is_found(appliers: list[Applier]) -> None:
    trees = parsed()
    for holder, statement, _ in MUTANTS:
        applier, name = next(
            (applier, name)
            for applier in appliers
            for name, value in vars(applier.__self__).items()
            if isinstance(value, holder)
        )
        appliers = [one for one in appliers if one is not applier]
        (function,) = (
            node
            for node in ast.walk(trees[applier.__module__])
            if isinstance(node, ast.FunctionDef)
            and node.name == applier.__name__
            and node.lineno == applier.__code__.co_firstlineno
        )
        function.body += ast.parse(statement.format(name)).body
    assert {what for *_, what in MUTANTS} <= Core(trees).reads(ROOTS).keys()
