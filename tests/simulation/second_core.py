"""A second core that applies the durable records of the first, and must have the same tables.

    the world's broker --flushes--> its disk --bytes of the log--> the second core's disk --records--> follow

After each step the second core gets the durable records, split at random; when the broker is quiet, and at
least every `COMPARE_EVERY` steps, all tables of both (`tests.simulation.tables`) are compared.

- It begins with an empty store, or late: from a copy of the first one's files, including a snapshot.
- At times it writes a checkpoint and is opened again from that, or is discarded and created again.
- It has another value in each setting (`other_settings`), different at each start, and its clock is an hour
  off: no table may depend on these. Names and ends of timers are compared under the shortest history.
- At times, when the first is quiet, a newer epoch begins, as if the lead had returned; it has the current or
  an older version, and a world may finalize the current one.
- In half of the seeds the first applies its appended records as decoded from their bytes.
- Its state is frozen, and the rows are taken while it continues: they equal those of a state taken at once.
- Before it follows a cut of retention it writes a checkpoint, so that none of its timers needs the log below.
- A start handles damage differently from a running core: there is no comparison after a file was damaged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from commitlog import store_format
from commitlog.applied_limits import OLDEST
from commitlog.facts.facts import facts_of
from commitlog.log.recovery import FoundRecord, LogScan
from commitlog.records import record
from commitlog.records.kinds import RETENTION_TOPIC
from commitlog.snapshots.snapshot import Snapshot
from services.broker import derived
from services.broker.broker import Broker
from services.broker.spine.appended import AppendResult, to_append_result
from services.broker.spine.settings import BrokerSettings
from tests.memory_disk import MemoryDisk
from tests.simulation.faults import Faults
from tests.simulation.other_settings import other_settings
from tests.simulation.tables import tables
from timingwheel import levels

COMPARE_EVERY: Final = 20
COMPARE_AFTER: Final = 14
"""Minimum of steps between two comparisons: each reads all tables."""
EPOCH_EVERY: Final = 25
"""Mean number of steps with a quiet broker between two new epochs."""
NEWEST: Final = OLDEST + 2
"""The highest version that an epoch names."""
HOUR_MS: Final = 3_600_000


class World(Protocol):
    """Common interface of the worlds."""

    broker: Broker
    disk: MemoryDisk
    settings: BrokerSettings
    now_ms: int
    faults: Faults

    def step(self) -> None:
        """Do one random action."""

    def flush(self) -> None:
        """Flush the appended records, unless the disk fails."""

    def endure(self, act: Callable[[], object]) -> None:
        """Run an action in which the process may die, or the disk fail."""


class SecondCore:
    """The second core of a world, with a separate random generator."""

    def __init__(self, world: World, seed: int, *, upgrades: bool = False) -> None:
        """`upgrades`: whether the current version may be finalized; a leader then writes filters again."""
        self._world, self._chance, self._upgrades = world, random.Random(~seed), upgrades
        self._joins_late = seed % 3 == 0
        self._decodes = seed % 2 == 1
        self._first: Broker | None = None
        self._core: Broker | None = None
        self._disk = MemoryDisk()
        self._steps = 0
        self._history_ms = world.settings.timer_history_ms
        """The shortest history that either core has had, in ms."""
        self._slices = random.Random(seed)
        self._slow: tuple[Broker, Snapshot, bytes] | None = None
        """State whose rows are taken while the core continues: the core, the state, its encoding at once."""
        self.compared_count = self.slow_count = self.epoch = 0
        self._version = self._chance.choice((OLDEST, OLDEST, OLDEST + 1, NEWEST))
        """The finalized version that epochs name."""

    def look(self) -> None:
        """Apply the durable records after a step of the world, and compare the tables if due."""
        self._meet()
        self._steps += 1
        first = self._world.broker
        check_plan(first)
        if first.is_quiet and self._chance.randrange(EPOCH_EVERY) == 0:
            if self._upgrades:
                self._version = self._chance.choice((self._version, NEWEST))
            number = first.epoch.number + self._chance.randrange(1, 4)
            first.epoch.raise_to(number, self._world.now_ms, "first", self._version)
        self.epoch = max(self.epoch, first.epoch.number)
        if self._steps >= COMPARE_EVERY and not self._world.broker.is_quiet:
            self._world.endure(self._world.flush)
            self._meet()
        self._catch_up()
        if self._core is not None and self._steps >= COMPARE_AFTER and self._world.broker.is_quiet:
            self._compare(self._core)

    def _meet(self) -> None:
        """Adapt to another first core, and discard a second core that has records which the first lost."""
        first = self._world.broker
        if first is not self._first:
            self._first = first
            self._history_ms = min(self._history_ms, self._world.settings.timer_history_ms)
            if self._decodes:
                apply_decoded(first)
        if self._core is not None and self._has_lost_end(self._core, first):
            self._core = None  # an asynchronous flush was lost with the power
        if self._core is not None and self._core.end_offset < first._log.first_offset:
            self._core = None  # records that it lacks were cut off in one step: it starts again with a copy

    def _has_lost_end(self, core: Broker, first: Broker) -> bool:
        """Return whether the first log ends before the second, or lost that end and grew again."""
        if core.end_offset > first.durable_offset:
            return True
        if core.end_offset == 0 or first._log._sync:
            return False
        path, position = core._log.segments.place(core.end_offset - 1)
        if self._world.disk.size(path) < 0:
            return False  # deleted: see below
        own, other = self._disk.view(path), self._world.disk.view(path)
        return bytes(own[: position + 1]) != bytes(other[: position + 1])

    def _catch_up(self) -> None:
        first = self._world.broker
        if self._world.faults.hit or is_damaged(first):
            self._core = None
            return
        if self._core is None:
            self._begin()
        core = self._core
        if core is None or core.end_offset == first.durable_offset:
            return
        scan = LogScan(self._world.disk, first.segment_bytes, core.end_offset, stop_at=first.durable_offset)
        for part in self._parts(iter(scan)):
            if any(found.record.topic == RETENTION_TOPIC for found in part):
                self._checkpoint(core)
            last = part[-1]
            end_offset = last.record.physical_offset + last.record_bytes
            self._freeze_slowly(core)
            core.append_replicated([*map(self._stored, part)], end_offset, self._world.now_ms)
        core.append_replicated([], first.durable_offset, self._world.now_ms)

    def _parts(self, records: Iterator[FoundRecord]) -> Iterator[list[FoundRecord]]:
        while part := list(islice(records, self._chance.randrange(1, 5))):
            yield part

    def _begin(self) -> None:
        """Begin with an empty store if the log is complete, or with a copy of the first one's files."""
        first, self._disk = self._world.broker, MemoryDisk()
        if self._joins_late or first._log.first_offset > 0:
            copy_files(self._world.disk, self._disk)
        else:
            store_format.open_format(self._disk, first.segment_bytes)
        self._core = self._opened(self._other_settings())
        if self._core.end_offset > first.durable_offset or is_damaged(self._core):
            self._core = None

    def _other_settings(self) -> BrokerSettings:
        other = other_settings(self._world.settings, self._chance)
        self._history_ms = min(self._history_ms, other.timer_history_ms)
        return other

    def _opened(self, other: BrokerSettings) -> Broker:
        return Broker.open(self._disk, other, self._world.now_ms + self._chance.choice((-HOUR_MS, HOUR_MS)))

    def _stored(self, found: FoundRecord) -> bytes:
        """Return the bytes of a record in the first one's log."""
        path, position = self._world.broker._log.segments.place(found.record.physical_offset)
        return bytes(self._world.disk.view(path)[position : position + found.record_bytes])

    def _checkpoint(self, core: Broker) -> None:
        done = core.checkpoint(self._world.now_ms)
        done.write(self._disk)
        core.complete_checkpoint(done)

    def _freeze_slowly(self, core: Broker) -> None:
        """Take some rows of a frozen state, as a live broker does between two turns."""
        if self._slow is None or self._slow[0] is not core:
            at_once = _frozen(core).encode()
            self._slow = core, _frozen(core), at_once
        _, frozen, at_once = self._slow
        for table in frozen.deferred():
            table.take(self._slices.randrange(3))
        if self._slices.random() < 0.1:
            assert frozen.encode() == at_once, "rows that were taken later are not those of their moment"
            self._slow = None
            self.slow_count += 1

    def _compare(self, core: Broker) -> None:
        self._steps = 0
        second = self._tables(core)
        differing = differing_tables(self._tables(self._world.broker), second)
        assert not differing, differing
        self.compared_count += 1
        chance = self._chance.random()
        if chance < 0.1:
            self._checkpoint(core)
            other = self._other_settings()
            second = self._tables(core)
            self._core = self._opened(other)
            differing = differing_tables(second, self._tables(self._core))
            assert not differing, f"a checkpoint is not what it was taken of: {differing}"
        elif chance < 0.2:
            self._core = None

    def _tables(self, core: Broker) -> dict[str, Any]:
        return tables(core, self._history_ms)


def check_plan(core: Broker) -> None:
    """Verify that the cached next due times equal those found by a search."""
    planned_ms, partitions = core.next_due_ms(), core.timers.partitions
    for wheel in (core._scheduler._leases, core._scheduler._others, core.timers.near._wheel):
        upcoming = wheel._next_slot()
        assert wheel._next_ms in (None, levels.SPAN_MS if upcoming is None else upcoming[2])
    partitions._is_next_known = False
    assert core.next_due_ms() == planned_ms, "something changed the plan of the partitions"


def _frozen(core: Broker) -> Snapshot:
    parts = {name: part.freeze() for name, part in core._parts.items()}
    return Snapshot(core.durable_offset, parts | derived.freeze(core.store))


def differing_tables(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the differing tables of two cores, with their differences."""
    assert first.keys() == second.keys()
    return {name: differences(first[name], second[name]) for name in first if first[name] != second[name]}


def differences(first: Any, second: Any) -> Any:
    """Return the rows that are only in the first and only in the second table."""
    if not isinstance(first, list) or not isinstance(second, list):
        return first, second
    return [one for one in first if one not in second], [one for one in second if one not in first]


def is_damaged(broker: Broker) -> bool:
    """Return whether damage was found, which a start handles differently from a running core."""
    return bool(broker.damage or broker.damaged or broker.startup_warnings or broker.lost)


def copy_files(disk: MemoryDisk, to: MemoryDisk) -> None:
    """Copy the files of a disk without its faults."""
    for path in disk.paths():
        to.write(path, 0, bytes(disk.view(path)))
        to.sync(path)
        to.sync_folder(path.rpartition("/")[0])


def apply_decoded(broker: Broker) -> None:
    """Let a broker apply its appended records as read by a start: decoded from their bytes."""
    store, apply, apply_to_parts = broker.store, broker.store.apply, broker.store.apply_to_parts
    store.apply = lambda appended: apply(read_again(appended))  # type: ignore[method-assign]  # a spy
    store.apply_to_parts = lambda appended: apply_to_parts(read_again(appended))


def read_again(appended: AppendResult) -> AppendResult:
    """Return an appended record as read by a start; verify that it equals the encoder's output."""
    stored = appended.stored
    if not stored:
        return appended
    encoded = record.encode(stored) if isinstance(stored, record.Record) else stored
    read = record.decode(encoded)
    facts = facts_of(read) if appended.facts else ()
    found = to_append_result(read, len(encoded), facts)
    said = appended._replace(stored=read, names=found.names)
    assert said == found, "an encoder says of a record what the record does not say"
    assert [*appended.names] == [*found.names], "a record is to be found by other names"
    return found
