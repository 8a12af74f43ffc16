"""Consumer groups under every verb, clock and failure, against an oracle; see `receiving_world`.

The simulation is determined by its seed; `pytest tests/simulation/test_receiving.py --seed S` repeats it.
"""

from __future__ import annotations

import pytest

from commitlog import limits
from consumequeue import queue
from consumequeue.entry import ENTRY_BYTES
from consumequeue.indexes import timerindex_recent
from services.store.read_only.opening import look_at
from services.store.verify.verify import verify
from tests.simulation.receiving_world import World
from tests.simulation.second_core import SecondCore
from timingwheel import wheel


def test_every_message_reaches_every_group_in_order_and_nothing_told_is_forgotten(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timerindex_recent, "_SLOTS", 1023)  # there are no timers here, and many starts
    if seed % 3 == 1:
        monkeypatch.setattr(limits, "IN_FLIGHT_PER_QUEUE_MAX", 5)
        monkeypatch.setattr(limits, "PARKED_PER_QUEUE_MAX", 4)
    if seed % 4 == 1:
        monkeypatch.setattr(limits, "AUTO_RENEW_MS_MAX", 7_000)
    if seed % 4 == 2:
        monkeypatch.setattr(limits, "SCANNED_PER_RECEIVE_MAX", 3)
    if seed % 6 == 5:
        monkeypatch.setattr(queue, "_FILE_BYTES", 4 * ENTRY_BYTES)  # retention deletes files of queues, too
    if seed % 7 == 2:
        monkeypatch.setattr(limits, "UNFLUSHED_BYTES_MAX", 900)  # dead letters wait for the disk
    if seed % 6 == 1:
        monkeypatch.setattr(limits, "OPEN_RECORD_BYTES_MAX", 60)  # a turn finishes with several records
    if seed % 5 == 1:
        monkeypatch.setattr(wheel, "_STALE_MIN", 3)
        monkeypatch.setattr(wheel, "_SWEPT_EACH", 2)
        monkeypatch.setattr(wheel, "_SWEPT_AT_ONCE", 1)
    if seed % 3 == 2:  # filters are dropped, and the messages waiting for them are matched again
        monkeypatch.setattr(limits, "FILTER_IDLE_MS", 30_000)
        monkeypatch.setattr(limits, "FILTER_CHECK_MS", 1_000)
        monkeypatch.setattr(limits, "FILTER_CLIENT_MS", 20_000)
        monkeypatch.setattr(limits, "FILTER_SETTINGS_MS", 10_000)
    if seed % 6 == 5:
        monkeypatch.setattr(limits, "FILTERS_PER_GROUP_MAX", 2)
    world = World(seed)
    second = SecondCore(world, seed)
    for _ in range(400):
        world.step()
        second.look()
    world.faults.cease()
    for act in (world.quieten, world.compare, world.drain):
        world.carry_out(act)
    if seed % 4 == 0:
        verdict = verify(look_at(world.disk, "the store"), world.now_ms)
        assert not world.faults.unexplained(verdict), verdict.findings
    world.crash()
    world.carry_out(world.compare)
