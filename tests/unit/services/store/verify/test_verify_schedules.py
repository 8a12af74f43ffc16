"""`verify` holds what a snapshot says of schedules against the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from services.broker.broker import Broker
from services.broker.schedules.schedule_values import MissedRunPolicy, Schedule
from services.broker.spine.settings import BrokerSettings
from services.store.dump import log_lines
from services.store.read_only.opening import look_at
from services.store.verify.verify import Verdict, verify
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
MINUTE_MS = 60_000
SETTINGS = BrokerSettings(segment_bytes=1 << 16)


def kept_store() -> MemoryDisk:
    """A store whose schedules sent, missed, rest or are gone; a snapshot in between and at the end."""
    disk = MemoryDisk()
    broker = Broker.open(disk, SETTINGS, NOW_MS)
    for name in ("sends", "rests", "gone", "skips"):
        missed = MissedRunPolicy.SKIP if name == "skips" else MissedRunPolicy.ALL
        schedule = Schedule(name=name, cron="* * * * *", time_zone="UTC", topic="t", body=b"x", missed=missed)
        broker.schedules.set(schedule, NOW_MS)
    for minute in (1, 2, 9, 10):
        now_ms = NOW_MS + minute * MINUTE_MS
        while (broker.next_due_ms() or now_ms + 1) <= now_ms:
            broker.tick(now_ms)
            flush_all(broker, disk, now_ms)
        if minute == 2:
            broker.schedules.pause("rests", now_ms)
            broker.schedules.delete("gone", now_ms)
        flush_all(broker, disk, now_ms)
        if minute in (2, 10):
            checkpoint = broker.checkpoint(now_ms)
            checkpoint.write(disk)
            broker.complete_checkpoint(checkpoint)
    return disk


def flush_all(broker: Broker, disk: MemoryDisk, now_ms: int) -> None:
    while (flush := broker.take_flush()) is not None:
        flush.write()
        broker.complete_flush(flush, now_ms)


def proven(disk: MemoryDisk) -> Verdict:
    return verify(look_at(disk, "store"), NOW_MS + 60 * MINUTE_MS)


def test_a_snapshot_of_schedules_is_what_the_log_leads_to() -> None:
    disk = kept_store()
    verdict = proven(disk)
    assert (verdict.findings, verdict.snapshot_count) == ([], 2)
    stored = snapshot.newest(disk)
    assert stored is not None
    running = {one["schedule"]["name"]: one for one in stored.parts["schedules"]["running"]}
    assert {name: one["sent_count"] for name, one in running.items()} == {"sends": 10, "rests": 2, "skips": 4}
    assert running["skips"]["passed_ms"] > NOW_MS
    kinds = [line["kind"] for line in log_lines(look_at(disk, "store"), 0, None)]
    assert kinds.count("schedule") == 4 + 2 + 1


def forget(parts: Any) -> None:
    parts["running"].pop()


def repeat(parts: Any) -> None:
    parts["running"][0]["cursor_ms"] -= MINUTE_MS


def wake(parts: Any) -> None:
    parts["running"][1]["is_paused"] = False


@pytest.mark.parametrize("spoil", [forget, repeat, wake])
def test_a_snapshot_that_says_otherwise_is_found(spoil: Callable[[Any], None]) -> None:
    disk = kept_store()
    stored = snapshot.newest(disk)
    assert stored is not None
    spoil(stored.parts["schedules"])
    Snapshot(stored.offset, stored.parts).write(disk)
    (finding,) = proven(disk).findings
    assert finding.what.startswith("its schedules are not those of the log")
