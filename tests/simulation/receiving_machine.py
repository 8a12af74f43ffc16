"""A broker with consumers and its machine, driven by one seed; `receiving_world` adds the clients.

A manual clock, which may be set back while the broker is down; flushes that finish in any order, or never;
checkpoints that fail midway; retention that deletes messages which groups have not received or hold; crashes
with lost and torn writes; syncs that fail. The log is read as it becomes durable (`follow`). After a crash
the broker is opened again, and in some cases twice more: from the same disk, and from the log alone without
any snapshot, with the same result.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from commitlog.disk.disk import SyncFailed
from commitlog.errors import StoreDamaged
from commitlog.layout import QUEUES_WHOLE, SNAPSHOTS
from commitlog.log.flush import Flush
from commitlog.log.recovery import LogScan, trusted_until
from commitlog.log.retention import RetentionPolicy, Retirement
from services.broker.broker import Broker
from services.broker.groups.group_values import GroupPolicy
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.topics import is_system
from services.broker.spine.values import Effect, RetireSegments, StartPosition, WakeReceivers
from tests.memory_disk import Death
from tests.missed_counts import missed_counts
from tests.simulation.faults import Faults
from tests.simulation.receiving_oracle import Course, Held, Oracle, Stored, in_flight_of
from tests.simulation.timer_machine import Disk
from tests.simulation.tries import CUTS, TAILS

START_MS = 1_763_700_000_000
SEGMENT_BYTES = 4096
SETTINGS = BrokerSettings(
    segment_bytes=SEGMENT_BYTES,
    queue_count=2,
    invisible_ms_min=100,
    auto_renew_lease_ms=3_000,
    attempts_max=4,
    housekeeping_ms=2_000,
)
CLOCK_STEPS_MS = (-3_600_000, -60_007, -5_003, -77, 77, 5_003, 60_007, 3_600_000)
STEPS_MS = (1, 1, 10, 100, 300, 1_000, 3_000, 12_000, 60_000)


class Machine:
    """A broker, its disk and its clock."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = Disk()
        self.now_ms = START_MS
        self.settings = replace(
            SETTINGS, tail_entries_max=TAILS[seed % len(TAILS)], cut_queues_max=CUTS[seed % len(CUTS)]
        )
        if seed % 2:
            pin_ms = self.chance.choice([0, 5_000, 3 * 86_400_000])
            policy = RetentionPolicy(log_bytes_max=4 * SEGMENT_BYTES, group_pin_ms=pin_ms)
            self.settings = replace(self.settings, retention=policy)
        if seed % 5 == 0:
            self.settings = replace(self.settings, group_start=StartPosition.LATEST)
        self.faults = Faults(self.chance, self.disk)
        self.may_go_back = seed % 7 == 3
        self.is_clock_set = seed % 3 == 0
        """Whether the system clock is set at times while the broker runs."""
        self.is_acting = False
        """Whether clients act on the broker, so that damage may end the process; otherwise it is verified."""
        self.queue_damage = 0.02 if seed % 3 == 0 else 0.0
        """Probability of damage to a queue file in a step; ten times that before a start."""
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)
        self._watch_queues()
        self.oracle = Oracle()
        self.followed = 0
        self.flying: list[Flush] = []
        self.retirements: list[Retirement] = []

    def policy(self, group: str) -> GroupPolicy:
        """Return the newest policy of a group."""
        raise NotImplementedError

    def see_buried(self, before: int) -> None:
        """Verify the messages moved to dead letters by a tick, from a log offset on."""
        raise NotImplementedError

    def wants(self, group: str, stored: Stored) -> bool:
        """Return whether a group is to get a message."""
        raise NotImplementedError

    def receive(self) -> None:
        """Receive with one of the groups."""
        raise NotImplementedError

    # Time.

    def pass_time(self) -> None:
        self.go_to(self.now_ms + self.chance.choice(STEPS_MS))

    def set_clock(self) -> None:
        """Set the system clock, and notify the core: the durations of leases are unaffected."""
        if not self.is_clock_set:
            return
        by_ms = self.chance.choice(CLOCK_STEPS_MS)
        self.now_ms += by_ms
        self.broker.record_clock_jump(self.now_ms - by_ms, self.now_ms)
        for course in self.oracle.now():
            for held in course.held.values():
                held.visible_ms += by_ms
                held.renewed_until_ms += by_ms

    def go_to(self, now_ms: int) -> None:
        """Advance the clock from event to event, or in one step: leases end one by one, or all at once."""
        if self.chance.random() < 0.5:
            while (due_ms := self.broker.next_due_ms()) is not None and due_ms < now_ms:
                self._tick(max(self.now_ms, due_ms))
                if self.chance.random() < 0.2:
                    self.flush()
        self._tick(now_ms)

    def obey_alarm(self) -> None:
        """Tick and flush until nothing is due any more, like the alarm, which each flush resets.

        One tick does a bounded slice: of the messages for dead letters, as many as the disk accepts.
        """
        self.quieten()
        while (due_ms := self.broker.next_due_ms()) is not None and due_ms <= self.now_ms:
            self._tick(self.now_ms)
            self.quieten()

    def _tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        before = self.broker.end_offset
        effects = self.broker.tick(now_ms)
        woken = {key for effect in effects if isinstance(effect, WakeReceivers) for key in effect.keys}
        for course in self.oracle.now():
            for held in [one for one in course.held.values() if one.visible_ms <= now_ms]:
                if not self.may_stand(course, held):
                    course.fail(held.place, before + 1, now_ms)
                    assert course.topic in woken or self.was_last(course, held), "nobody was woken"
        self.see_buried(before)
        self._carry_out(effects)

    def was_last(self, course: Course, held: Held) -> bool:
        """Return whether a lease was its message's last attempt: then the flush wakes waiting receivers."""
        return held.failure_count + 1 >= self.policy(course.group).attempts_max

    def may_stand(self, course: Course, held: Held) -> bool:
        """Return whether an expired lease may remain: its message becomes a dead letter after a backlog."""
        is_last = self.was_last(course, held) and not held.is_suspended
        standing = held.generation in self.broker.groups.leases._leases
        return is_last and standing and self.broker.store.has_flush_backlog

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, RetireSegments):
                self.retirements.append(effect.retirement)

    # The disk.

    def take_flush(self) -> None:
        """Begin a flush that is finished later, or lost in a crash."""
        flush = self.broker.take_flush()
        if flush is not None:
            self.flying.append(flush)

    def flush(self) -> None:
        """Finish the flushes in flight and a new one, in any order."""
        self.take_flush()
        self.chance.shuffle(self.flying)
        for flush in self.flying:
            flush.write()
            self._carry_out(self.broker.complete_flush(flush, self.now_ms))
        self.flying.clear()
        self.write_entries()
        self.follow()
        self._retire()

    def write_entries(self) -> None:
        """With probability 0.5, write the queue entries that wait in memory."""
        if self.chance.random() < 0.5 and (entries := self.broker.take_entries()) is not None:
            entries.write(self.disk)
            self.broker.complete_entries()

    def quieten(self) -> None:
        """Flush until all changes are durable."""
        while not self.is_quiet:
            self.flush()

    @property
    def is_quiet(self) -> bool:
        return self.broker.is_quiet and not self.flying

    def checkpoint(self) -> None:
        self.quieten()
        checkpoint = self.broker.checkpoint(self.now_ms)
        self.faults.threaten(0.25)
        try:
            checkpoint.write(self.disk)
        except OSError as error:
            self.broker.abandon_checkpoint(checkpoint)
            if self.chance.random() < 0.5:
                self.crash()
            elif isinstance(error, SyncFailed):
                self._reopen(self.broker.durable_offset)
        else:
            self.broker.complete_checkpoint(checkpoint)

    def crash(self) -> None:
        """Lose power, possibly during a flush; unanswered changes may or may not have happened."""
        self.take_flush()
        self.chance.shuffle(self.flying)
        for flush in self.flying[: self.chance.randrange(len(self.flying) + 1)]:
            self.faults.threaten(0.5)
            with contextlib.suppress(OSError, Death):
                flush.write()
        self.die(is_cut=True)

    def die(self, *, is_cut: bool | None = None) -> None:
        """End the process by a kill or a power cut, and start it again."""
        self.faults.end_process(is_cut=is_cut)
        self.faults.damage()
        self.faults.damage_queue(10 * self.queue_damage)
        self._reopen(None)

    def endure(self, act: Callable[[], object]) -> None:
        """Run an action in which the process may die, or a disk operation fail."""
        while self.has_found_damage:  # a start may find the next one
            self.die()
        self.faults.threaten()
        self.faults.damage_queue(self.queue_damage, by_bits=True)
        self.is_acting = True
        try:
            act()
        except Death:
            self.die()
        except OSError:
            self._reopen(self.broker.durable_offset)
        self.is_acting = False
        self.faults.relent()
        if not self.broker.housekeeping.has_reserve:
            self.disk.well()
            self.broker.housekeeping.measure_space()

    def carry_out(self, act: Callable[[], object]) -> None:
        """Run an action to its end; repeat it after a restart if a queue file is found damaged."""
        while True:
            while self.has_found_damage:  # a start may find the next one
                self.die()
            self.is_acting = True
            try:
                act()
            except (Death, StoreDamaged):  # the latter for a file found damaged by an intermediate start
                assert self.has_found_damage, "the disk is well"
                self.die()
            else:
                self.is_acting = False
                return

    def fail_to_flush(self) -> None:
        """Fail some of the syncs: the core is discarded and rebuilt from the durable log."""
        self.take_flush()
        if self.flying:
            for flush in self.flying:
                self.disk.failing_syncs = self.chance.choice([0, 1])
                with contextlib.suppress(OSError):
                    flush.write()
            self.disk.well()
            self._reopen(self.broker.durable_offset)

    def reopen(self) -> None:
        """Stop cleanly, and start again."""
        self.quieten()
        self._reopen(None)

    def _reopen(self, acknowledged_offset: int | None) -> None:
        told_offset = self.broker.durable_offset
        if acknowledged_offset is not None:
            acknowledged_offset = trusted_until(self.disk, acknowledged_offset)
        self.flying.clear()
        self.retirements = []
        if self.may_go_back:
            self.now_ms -= self.chance.choice([0, 0, 77, 5_003, 60_007])
        acknowledged_offset = self.faults.starts_that_die(self._judged, acknowledged_offset)
        copies = [deepcopy(self.disk) for _ in range(2)] if self.chance.random() < 0.2 else []
        self.is_acting = False
        self.broker = self._judged(acknowledged_offset)
        self._watch_queues()
        assert self.broker.end_offset >= told_offset, "what was told is gone"
        frozen = self.broker.groups.freeze()
        self.follow()
        assert missed_counts(self.broker) == self.oracle.missed, "what groups missed outlives a start"
        self.oracle.crash(self.broker.end_offset, told_offset, self.broker, self.now_ms)
        if copies:
            self._fold_again(*copies, frozen, acknowledged_offset)

    def _judged(self, acknowledged_offset: int | None) -> Broker:
        """Open the store, and compare the damage reported by the start with the injected damage."""
        self.now_ms += 1  # generations start from the clock: each start needs another millisecond
        broker = Broker.open(self.disk, self.settings, self.now_ms, acknowledged_offset)
        assert not self.faults.lost(broker, self.broker.durable_offset)
        return broker

    def _watch_queues(self) -> None:
        """End the process when a queue file is found damaged, as its message instructs the operator.

        The core's actions before the detection are verified, those after it are not.
        """
        self.has_found_damage = any(one.part == "queue" for one in self.broker.damage)
        if self.queue_damage:
            self.broker.store.dispatch._tell_damaged = self._found_damaged

    def _found_damaged(self, path: str, what: str) -> None:
        if "cannot be made" in what or path == QUEUES_WHOLE:
            return  # a fault of the disk: no file is damaged, or the damaged one is reported next
        assert path in self.faults.hit_queues or "cannot be written" in what, (
            f"{path} is as it was written: {what}"
        )
        self.has_found_damage = True
        if self.is_acting:
            raise Death(what)

    def _fold_again(self, same: Disk, bare: Disk, frozen: Any, acknowledged_offset: int | None) -> None:
        """Verify that a second start recovers the same state, with and without snapshots."""
        again = Broker.open(same, self.settings, self.now_ms, acknowledged_offset)
        assert again.groups.freeze() == frozen, "a second start comes to something else"
        if self.settings.retention.deletes:
            return
        bare.delete(SNAPSHOTS)
        folded = Broker.open(bare, self.settings, self.now_ms, acknowledged_offset)
        assert _members(folded.groups.freeze()) == _members(frozen)
        assert folded.groups.freeze()["policies"] == frozen["policies"]
        assert sorted(folded.groups.freeze()["progress"], key=repr) == sorted(frozen["progress"], key=repr)

    # The log.

    def follow(self) -> None:
        """Read the newly durable part of the log."""
        end_offset = self.broker.durable_offset
        if self.followed < end_offset:
            for found in LogScan(self.disk, SEGMENT_BYTES, self.followed, end_offset):
                if is_system(found.record.topic):
                    self.oracle.follow_missed(found.record)
                else:
                    self.oracle.follow(found.record)
            self.followed = end_offset

    def _retire(self) -> None:
        for retirement in self.retirements:
            if retirement.durable_at <= self.broker.durable_offset:
                if self.chance.random() < 0.5:
                    self.receive()  # its leases have no record yet when the log is cut
                self.faults.threaten(0.15)
                try:
                    retirement.run(self.disk)
                except OSError:
                    self.retirements = []
                    self.broker.abandon_retirement()
                    return
                self.retirements = []
                while self.chance.random() < 0.9:
                    if self._retired(retirement):
                        return
                    self.receive()
                self._reopen(None)
                return

    def _retired(self, retirement: Retirement) -> bool:
        """Continue a retirement, and verify the counts of deleted messages that groups had not done.

        Return whether it is complete.
        """
        before, wanted = missed_counts(self.broker), {}
        for key, queue, committed_offset in self.broker.groups.committed_offsets():
            wanted[key] = committed_offset, queue, _done(in_flight_of(self.broker, *key).offsets.freeze())
        is_done = self.broker.continue_retirement(retirement, self.now_ms)
        expected: Counter[tuple[str, str]] = Counter()
        for (group, topic, _), (committed_offset, queue, done) in wanted.items():
            gone = set(range(committed_offset, queue.min_offset))
            expected[topic, group] += len(gone - done)
        assert missed_counts(self.broker) - before == +expected
        return is_done


def _members(frozen: dict[str, Any]) -> dict[str, set[str]]:
    return {topic: set(groups) for topic, groups in frozen["members"].items() if groups}


def _done(frozen: dict[str, Any]) -> set[int]:
    above = {at for first, count in frozen["done"] for at in range(first, first + count)}
    return above | set(range(frozen["low"]))
