"""One file of a store is damaged at a time: what is lost, who tells of it, and what mends it.

A store is built through the core, with a little of everything: timers near and far, ended in every way,
halves open, expired and ended, groups with progress and leases, a schedule, a user, deleted segments with a
keep file. The oracle is what a broker on the undamaged store knows and delivers until nothing waits. Then one
fault is put into one file of a copy: a flipped bit, zeros, a cut, a deletion; `verify` looks at it, a broker
opens it and time goes on until nothing waits. What differs from the oracle is lost; who said so has told.
Who repaired it is the broker if `verify` finds no damage after two more checkpoints, else `store repair`.

    python -m tests.endurance.damage --step 97      all of it: JSON, and a table in Markdown
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from commitlog import layout
from commitlog.errors import StoreError
from commitlog.log import imported
from commitlog.log.recovery import LogScan
from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.schedules.schedule_values import Schedule
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import (
    CheckBackRequest,
    HalfFilter,
    PendingTimer,
    Resolution,
    RetireSegments,
    RunTimersJob,
    SendReceipt,
    TimerFilter,
    TimerName,
)
from services.store.read_only.opening import look_at
from services.store.repair import repair
from services.store.verify.verify import verify
from tests.memory_disk import MemoryDisk
from tidewheel.errors import TidewheelError
from txn.checkback import CheckBackPolicy

START_MS = 1_763_700_000_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
SETTINGS = BrokerSettings(
    segment_bytes=8 * 1024,
    queue_count=1,
    tail_entries_max=1,
    housekeeping_ms=1_000,
    check_back=CheckBackPolicy(immunity_ms=500, interval_ms=400, count_max=2),
    retention=RetentionPolicy(log_bytes_max=4 * 8 * 1024, group_pin_ms=0),
)
NO_RETENTION = BrokerSettings(
    segment_bytes=8 * 1024,
    queue_count=1,
    tail_entries_max=1,
    housekeeping_ms=1_000,
    check_back=CheckBackPolicy(immunity_ms=10 * DAY),
)
DELAYS_MS = (20 * SECOND, 10 * MINUTE, 5 * HOUR, 40 * DAY)
STEPS_MS = (5 * SECOND, MINUTE, HOUR, 6 * HOUR, 10 * DAY, 50 * DAY)
TOPIC = "orders"
BITS_A_REPAIR = 16
"""Of so many flipped bits of a kind one is looked at again, to see who repairs it; of other faults each."""


class World:
    """A broker on a disk in memory, whose shell does at once what it is told."""

    def __init__(self, disk: MemoryDisk, now_ms: int, settings: BrokerSettings) -> None:
        self.disk, self.now_ms, self.settings = disk, now_ms, settings
        self.broker = Broker.open(disk, settings, now_ms)

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def checkpoint(self) -> None:
        self.flush()
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def go(self, by_ms: int) -> None:
        """Lets time pass at once, and everything happen that is due by then."""
        self.now_ms += by_ms
        while True:
            effects = self.broker.tick(self.now_ms)
            for effect in effects:
                if isinstance(effect, RunTimersJob):
                    effect.job.run(self.disk)
                    self.broker.complete_timers_job(effect.job)
                elif isinstance(effect, RetireSegments):
                    self.flush()
                    effect.retirement.run(self.disk)
                    self.broker.continue_retirement(effect.retirement, self.now_ms)
                elif isinstance(effect, CheckBackRequest):
                    self.broker.transactions.complete_check_back(effect.transaction_id, True, self.now_ms)
            is_going_on = bool(effects) or not self.broker.is_quiet
            self.flush()
            if self.broker.is_checkpoint_due:
                self.checkpoint()
                is_going_on = True
            due_ms = self.broker.next_due_ms()
            if not is_going_on and (due_ms is None or due_ms > self.now_ms):
                return

    def send(self, message_id: str, delay_ms: int = 0, half: bool = False, **marks: str) -> SendReceipt:
        message = Message(
            topic=TOPIC,
            body=b"body of " + message_id.encode(),
            message_id=message_id,
            keys=(f"k{message_id}",),
        )
        message.properties, message.transactional = marks, half
        if delay_ms:
            message.delivery_ms = self.now_ms + delay_ms
        receipt = self.broker.sending.send(message, self.now_ms)
        self.flush()
        return receipt

    def receive(self, count: int, acks: int) -> None:
        now_ms = self.now_ms
        given = self.broker.receiving.receive(
            "g", TOPIC, EVERYTHING, count, 60_000, "c", False, now_ms
        ).deliveries
        for one in given[:acks]:
            self.broker.receiving.ack("g", TOPIC, one.receipt_handle, now_ms)
        self.flush()

    def messages(self) -> Counter[str]:
        """What can be read of the queue, by message id."""
        found = self.broker.finding.read(TOPIC, 0, 0, 100_000)
        assert all(one.message.body == b"body of " + one.message.message_id.encode() for one in found)
        return Counter(one.message.message_id for one in found)


def build() -> World:
    """The store, small; its oldest segments are gone, and halves and timers outlive them."""
    world = World(MemoryDisk(), START_MS, SETTINGS)
    broker = world.broker
    broker.access.add_user("ann", "sealed", False, world.now_ms)
    broker.schedules.set(
        Schedule(
            name="nightly",
            cron="0 3 * * *",
            time_zone="UTC",
            topic="nights",
            body=b"x",
            start_ms=START_MS + 2_000 * DAY,
        ),
        START_MS,
    )
    expiring = world.send("expired", half=True)
    for _ in range(6):
        world.go(SECOND)
    assert expiring.transaction_id
    _round(world, 0)
    kept = world.send("kept", half=True)
    assert kept.transaction_id
    world.broker = Broker.open(world.disk, _patient(SETTINGS), world.now_ms)
    for number in range(1, 5):
        _round(world, number)
        for filler in range(18):
            world.send(f"filler {number} {filler}")
        world.checkpoint()
        world.go(2 * SECOND)
    world.send("open", half=True)
    _round(world, 9)
    world.flush()
    layout.begin_clock(world.disk)
    imported.write(world.disk, 1)
    return world


def _patient(settings: BrokerSettings) -> BrokerSettings:
    """The same, and halves are not asked about for long."""
    return BrokerSettings(
        segment_bytes=settings.segment_bytes,
        queue_count=1,
        tail_entries_max=1,
        housekeeping_ms=1_000,
        check_back=CheckBackPolicy(immunity_ms=4_000 * DAY, interval_ms=4_000 * DAY),
        retention=settings.retention,
    )


def _round(world: World, number: int) -> None:
    for delay_ms in DELAYS_MS:
        world.send(f"{number}-{delay_ms}", delay_ms, TW_TIMER_KEY=f"key {number}-{delay_ms}")
    for kind in ("cancelled", "moved", "fired"):
        world.send(f"{number}-{kind}", 3 * HOUR, TW_TIMER_KEY=f"key {number}-{kind}")
    cancelled, moved, fired = (
        TimerName(TOPIC, f"{number}-{kind}") for kind in ("cancelled", "moved", "fired")
    )
    ended = world.send(f"{number}-committed", half=True)
    world.broker.transactions.end(
        TOPIC, ended.transaction_id, f"{number}-committed", Resolution.COMMIT, world.now_ms
    )
    world.flush()
    if number:
        world.checkpoint()
    world.broker.timers.cancel(cancelled, "why", world.now_ms)
    world.broker.timers.move(moved, world.now_ms + 4 * HOUR, world.now_ms)
    world.broker.timers.fire(fired, world.now_ms)
    world.flush()
    world.receive(5, 3)
    world.go(SECOND)


@dataclass
class Known:
    """What a broker knows of a store, and delivers until nothing waits."""

    readable: Counter[str] = field(default_factory=Counter)
    offsets: dict[str, int] = field(default_factory=dict)
    delivered: Counter[str] = field(default_factory=Counter)
    halves: set[tuple[str, str]] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    to_receive: frozenset[str] = frozenset()
    users: int = 0
    schedules: int = 0
    told: list[str] = field(default_factory=list)
    """First what was made anew, which is no damage where only the mark of whole queues is missing."""
    remade_count: int = 0
    lost_timers: int = 0
    pending_left: int = 0
    refused: str = ""


def look(disk: MemoryDisk, now_ms: int, ended_names: tuple[str, ...]) -> Known:
    """Opens a store, and lets time go on until nothing waits."""
    known = Known()
    try:
        layout.read_clock(disk)
        world = World(disk, now_ms, _patient(NO_RETENTION))
    except StoreError as error:
        known.refused = error.detail
        return known
    broker = world.broker
    known.told += broker.rebuilt_files + broker.startup_warnings
    known.remade_count = len(known.told)
    known.readable = world.messages()
    world.go(0)
    listed = broker.timer_views.read_page(TimerFilter(), None, 10_000).timers
    known.offsets = {one.message_id: one.timer_offset for one in listed}
    known.halves = {
        (one.message_id, one.state.name) for one in broker.half_views.page(HalfFilter(), None, 1_000).halves
    }
    for name in ended_names:
        try:
            found = broker.timers.get_timer(TimerName(TOPIC, name), now_ms)
            known.ended[name] = "waits" if isinstance(found, PendingTimer) else found.verdict.value
        except TidewheelError:
            known.ended[name] = "refused"
    known.to_receive = _received(broker, now_ms)
    known.users, known.schedules = len(broker.access.users()), len(broker.schedules.page())
    for step_ms in STEPS_MS:
        world.go(step_ms)
    known.delivered = world.messages() - known.readable
    known.pending_left = broker.gauges().pending_timers
    known.told += [one.what for one in broker.damage]
    known.lost_timers = len(broker.timer_views.lost()) + broker.statistics.timers_unknown
    for number in range(2):  # what was mended is in both snapshots then
        world.send(f"after {number}")
        world.checkpoint()
    return known


def _received(broker: Broker, now_ms: int) -> frozenset[str]:
    """What the group is given, all of it."""
    found: set[str] = set()
    while given := broker.receiving.receive(
        "g", TOPIC, EVERYTHING, 32, 60_000, "d", False, now_ms
    ).deliveries:
        found |= {one.message.message_id for one in given}
    return frozenset(found)


@dataclass
class Row:
    """A kind of file under a kind of fault."""

    runs: int = 0
    refused: int = 0
    lost: int = 0
    lost_most: int = 0
    phantom: int = 0
    needless: int = 0
    silent: int = 0
    verify_silent: int = 0
    unsaid: list[str] = field(default_factory=list)
    told_by: Counter[str] = field(default_factory=Counter)
    repaired_by: Counter[str] = field(default_factory=Counter)
    lost_kinds: Counter[str] = field(default_factory=Counter)


class Damage:
    """The store, its oracle, and faults."""

    def __init__(self) -> None:
        world = build()
        self.now_ms = world.now_ms
        self.files = _files_of(world.disk)
        self.records = list(LogScan(world.disk, SETTINGS.segment_bytes))
        self.first_offset = int(min(world.disk.list(layout.COMMITLOG)))
        numbers = (0, 1, 2, 3, 4, 9)
        self.names = tuple(f"{number}-{kind}" for number in numbers for kind in ("cancelled", "fired"))
        self.oracle = look(self.copy(), self.now_ms, self.names)
        assert not self.oracle.refused, self.oracle.refused
        assert not self.oracle.told, self.oracle.told
        assert self.oracle.pending_left == 0

    def copy(self) -> MemoryDisk:
        disk = MemoryDisk()
        for name, content in self.files.items():
            disk.write(name, 0, content)
            disk.sync(name)
        return disk

    def kinds(self) -> dict[str, list[str]]:
        """The files by kind."""
        snapshots = sorted(path for path in self.files if path.startswith("snapshots/"))
        kinds: dict[str, list[str]] = {}
        for path in sorted(self.files):
            kind = path.split("/")[0]
            if path in snapshots:
                kind = "snapshot newest" if path == snapshots[-1] else "snapshot older"
            kinds.setdefault(kind, []).append(path)
        return kinds

    def faults(self, kind: str, step: int, files_max: int) -> Iterator[tuple[str, str, MemoryDisk]]:
        """(fault, where, damaged copy) of all files of a kind."""
        bit = 0
        for path in self.kinds()[kind][-files_max:]:
            size = len(self.files[path])
            for one in range(bit, 8 * size, step):
                disk = self.copy()
                disk.flip_bit(path, one)
                yield "bit", f"{path} bit {one}", disk
            bit = (bit - 8 * size) % step
            for length in sorted({0, 1, size // 3, size // 2, size - 1}):
                if length < size:
                    disk = self.copy()
                    disk.truncate(path, length)
                    yield "cut", f"{path} cut to {length}", disk
            disk = self.copy()
            disk.write(path, 0, bytes(size))
            disk.sync(path)
            yield "zeros", f"{path} zeroed", disk
            disk = self.copy()
            disk.delete(path)
            yield "gone", f"{path} deleted", disk

    def run(self, kind: str, fault: str, where: str, disk: MemoryDisk, row: Row) -> None:
        """One fault: what is lost, and who tells."""
        row.runs += 1
        told_by: set[str] = set()
        self._verify(disk, where, told_by)
        known = look(disk, self.now_ms, self.names)
        if known.refused:
            told_by.add("start refuses")
            row.refused += 1
        if known.told:
            told_by.add("broker")
        lost = [] if known.refused else list(self.lost(known))
        row.phantom += 0 if known.refused else len(list(self.phantoms(known, where, row)))
        row.told_by.update(told_by)
        if told_by and (fault != "bit" or row.runs % BITS_A_REPAIR == 1):
            row.repaired_by[self.repaired_by(disk)] += 1
        row.lost += len(lost)
        row.lost_most = max(row.lost_most, len(lost))
        row.lost_kinds.update(one.split(" ")[0] for one in lost)
        needless = [one for one in lost if self._is_needless(one, kind)]
        if needless:
            row.needless += len(needless)
            row.unsaid.append(f"{where}: lost though the log has it: {needless[:3]}")
        is_told = bool(told_by & {"broker", "start refuses"})
        if lost and not is_told:
            row.silent += 1
            row.unsaid.append(f"{where}: silent: {lost[:3]}")
        is_damage = bool(lost or known.refused or known.told[known.remade_count :])
        if is_damage and "verify" not in told_by:
            row.verify_silent += 1
            row.unsaid.append(
                f"{where}: not told by verify: {known.told[:1]} {known.refused[:80]} {lost[:2]}"
            )

    def repaired_by(self, disk: MemoryDisk) -> str:
        """Who has made a store sound again that a broker had run on, or may do so now."""
        if not self._is_damaged(disk):
            return "broker"
        with suppress(StoreError):
            plan = repair.plan(look_at(disk, "damaged"), self.now_ms, gives_up=True)
            repair.carry_out_on(disk, plan, look_at(disk, "damaged"), self.now_ms)
            if not self._is_damaged(disk):
                return "store repair"
        return "a backup"

    def _is_damaged(self, disk: MemoryDisk) -> bool:
        told_by: set[str] = set()
        self._verify(disk, "repaired", told_by)
        return bool(told_by)

    def _is_needless(self, lost: str, kind: str) -> bool:
        what, _, name = lost.partition(" ")
        if kind in (layout.COMMITLOG, layout.KEEP):
            return False
        return what != "timer" or self.oracle.offsets.get(name, 0) >= self.first_offset

    def _verify(self, disk: MemoryDisk, where: str, told_by: set[str]) -> None:
        try:
            verdict = verify(look_at(disk, where), self.now_ms)
        except StoreError:
            told_by.add("verify")
        else:
            if any(one.is_damage for one in verdict.findings):
                told_by.add("verify")

    def lost(self, known: Known) -> Iterator[str]:
        """What the oracle has and this store has not."""
        oracle = self.oracle
        yield from (f"message {one}" for one in (oracle.readable - known.readable).elements())
        yield from (f"timer {one}" for one in (oracle.delivered - known.delivered).elements())
        yield from (f"half {one}" for one in oracle.halves - known.halves)
        if known.pending_left:
            yield f"pending {known.pending_left} timers wait for ever"
        yield from (f"receive {one}" for one in oracle.to_receive - known.to_receive)
        if known.users < oracle.users:
            yield "user ann"
        if known.schedules < oracle.schedules:
            yield "schedule nightly"

    def phantoms(self, known: Known, where: str, row: Row) -> Iterator[str]:
        """What this store has and the oracle has not.

        Where the log lost an end of a timer, or an acknowledgement, that comes again, and is told.
        """
        found = [f"message {one}" for one in (known.readable - self.oracle.readable).elements()]
        found += [f"timer {one}" for one in (known.delivered - self.oracle.delivered).elements()]
        found += [f"receive {one}" for one in known.to_receive - self.oracle.to_receive]
        for name, verdict in known.ended.items():
            if verdict == "waits":
                found.append(f"ended {name} is taken for one that waits")
        if found and not (where.startswith(layout.COMMITLOG) and known.told):
            row.unsaid.append(f"{where}: phantom: {found[:3]}")
        yield from found


def _files_of(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: bytes(disk.view(path)) for path in _paths(disk, "")}


def _paths(disk: MemoryDisk, folder: str) -> Iterator[str]:
    for name in disk.list(folder):
        path = f"{folder}/{name}" if folder else name
        if disk.size(path) < 0:
            yield from _paths(disk, path)
        else:
            yield path


def table(
    damage: Damage, step: int, kinds: list[str] | None = None, files_max: int = 1_000
) -> dict[tuple[str, str], Row]:
    """Runs all faults of some kinds of files; of each kind in the last `files_max` only."""
    rows: dict[tuple[str, str], Row] = {}
    for kind in kinds or list(damage.kinds()):
        for fault, where, disk in damage.faults(kind, step, files_max):
            row = rows.setdefault((kind, fault), Row())
            damage.run(kind, fault, where, disk, row)
    return rows


def markdown(rows: dict[tuple[str, str], Row]) -> str:
    lines = [
        "| file | fault | runs | refused | lost (most at once) | though elsewhere | phantom | silent "
        "| not in verify | told by | repaired by |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (kind, fault), row in rows.items():
        told = ", ".join(f"{name} {count}" for name, count in sorted(row.told_by.items()))
        repaired = ", ".join(f"{name} {count}" for name, count in sorted(row.repaired_by.items()))
        lost = f"{row.lost} ({row.lost_most}) {dict(row.lost_kinds)}" if row.lost else "0"
        lines.append(
            f"| {kind} | {fault} | {row.runs} | {row.refused} | {lost} | {row.needless} | {row.phantom} "
            f"| {row.silent} | {row.verify_silent} | {told} | {repaired} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=int, default=97)
    parser.add_argument("--kinds", nargs="*")
    given = parser.parse_args()
    rows = table(Damage(), given.step, given.kinds)
    print(markdown(rows))
    for row in rows.values():
        for one in row.unsaid[:5]:
            print(one)
    json.dump(
        {" ".join(key): row.__dict__ for key, row in rows.items()},
        sys.stderr,
    )


if __name__ == "__main__":
    main()
