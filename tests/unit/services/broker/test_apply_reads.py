"""`apply` reads the record and the state: no setting, and no limit that another program may have otherwise.

What is read is found in the sources (`tests.unit.apply_reads`). Each read is on one of the lists below with
its reason, or is a limit that goes by the version of the log (`commitlog.applied_limits`).
"""

from __future__ import annotations

import pytest

from tests.unit.apply_reads import Core

ROOTS = [
    *(("Broker", name) for name in ("_apply", "_table_of_appliers")),
    ("Store", "apply"),
    ("Transactions", "publish"),  # open halves, and ended ones
]
PLACES = "where this core keeps it; no table holds the place"
SAID = "records say it: the default of a field that each record has"
SHAPE = "how rows lie in memory, not which"
FORMAT = "of a format: it does not change"
DERIVED = "what is derived of the text that a record says, and is in no table"
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
    "Scheduler._leases": "a wheel: it is made with the time of the start, and holds no table",
    "Scheduler._others": "a wheel: it is made with the time of the start, and holds no table",
    "Wheel.now_ms": "a wheel: it is made with the time of the start, and holds no table",
    "wheel._LEFT_BEHIND_MIN": SHAPE,
    "levels.SLOT_COUNT": SHAPE,
    "sorted_offsets.ARRAY_LENGTH_MAX": SHAPE,
    "table.GONE_MAX": SHAPE,
    "table.PART_ROWS_MAX": SHAPE,
    "RecentIds._bits": RECENT,
    "RecentIds._first_bit": RECENT,
    "RecentIds._origin": RECENT,
    "limits.RECENT_IDS_SPILLED_MAX": RECENT,
    "recent_ids.BUCKET_BITS_MAX": RECENT,
    "store_times.STEP_MS": RECENT,
    "StoreTimes._moments": RECENT,
    "name_hash.WIDE_HASH_BYTES": FORMAT,
    "entry.ENTRY_BYTES": FORMAT,
    "queue._FILE_BYTES": FORMAT,
    "queue._BLOCK_BYTES": SHAPE,
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


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


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
        (("HalfReceipts", "known"), "settings.dedupe_ms"),
        (("TimerEnds", "is_forgotten"), "TimerEnds._history_ms"),
        (("Transactions", "check_room"), "limits.HALVES_WAITING_MAX"),
        (("Outcomes", "takes_late"), "outcomes.LATE_ENDS_MAX"),
    ],
)
def test_each_kind_of_read_is_found(core: Core, root: tuple[str, str], what: str) -> None:
    assert what in core.reads([root], reached_min=1)
