"""A broker with many timers and its machine, driven by one seed; `timer_world` adds its clients.

A clock that advances slowly, jumps, and is set back; partitions that are read at once, late, or not at all;
slow checkpoints that may fail; retention that deletes the log below pending timers; crashes with lost and
torn writes. The log is read as it becomes durable (`follow`), so that a delivery is recorded even if
retention deletes it later, and all its records are verified against `timer_oracle`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace

from commitlog import layout
from commitlog.disk.disk import SyncFailed
from commitlog.errors import StoreDamaged
from commitlog.limits import TIMER_ROWS_READ_AHEAD_MAX
from commitlog.log.flush import Flush
from commitlog.log.recovery import LogScan, trusted_until
from commitlog.log.retention import RetentionPolicy, Retirement
from commitlog.records import properties
from commitlog.records.kinds import TIMER_TOPIC, VERB_TOPIC, End, endings
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.broker import Broker
from services.broker.checkpoint import Checkpoint
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import CheckBackRequest, Effect, RetireSegments, RunTimersJob
from services.broker.timers.timer_records import due_ms_of, is_held, is_rebuilt
from tests.memory_disk import Death, MemoryDisk
from tests.simulation.faults import FACT_KINDS, TIMER_KINDS, Faults
from tests.simulation.timer_oracle import Oracle, Timer
from tests.simulation.tries import CUTS, TAILS
from tidewheel import property_names
from timingwheel import partition
from timingwheel.due_run import ReadAhead

START_MS = 1_763_700_000_000
SEGMENT_BYTES = 8192
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
STEPS_MS = (1, 1, 10, 300, 3 * SECOND, 12 * SECOND, MINUTE, 15 * MINUTE, 5 * HOUR, 2 * DAY, 20 * DAY)
SETTINGS = BrokerSettings(segment_bytes=SEGMENT_BYTES, queue_count=2)
TOPICS = ("a", "b")


class Disk(MemoryDisk):
    """A disk that raises FileNotFoundError for reads of missing files."""

    def read(self, path: str, position: int, length: int) -> bytes:
        if self.size(path) < 0:
            raise FileNotFoundError(2, "it was deleted", path)
        return super().read(path, position, length)


class Machine:
    """A broker, its disk and its clock."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = Disk()
        self.now_ms = self.seen_ms = START_MS
        self.settings = replace(
            SETTINGS, tail_entries_max=TAILS[seed % len(TAILS)], cut_queues_max=CUTS[seed % len(CUTS)]
        )
        if seed % 2:
            policy = RetentionPolicy(log_bytes_max=4 * SEGMENT_BYTES)
            self.settings = replace(self.settings, housekeeping_ms=2_000, retention=policy)
        self.histories_ms = (HOUR, 7 * DAY) if seed % 3 == 0 else (SETTINGS.timer_history_ms,)
        self.settings = replace(self.settings, timer_history_ms=self.histories_ms[0])
        self.may_go_back = seed % 5 == 0
        self.went_back = False
        self.faults = Faults(self.chance, self.disk, self._kinds_hit(seed))
        self.rows_max = {1: 5, 3: 1}.get(seed % 4, TIMER_ROWS_READ_AHEAD_MAX)
        self.told: set[str] = set()
        """The damage reported by all cores."""
        self.rebuilt_count = self.held_count = 0
        self.broker = self._open(None)
        self.oracle = Oracle(min(self.histories_ms))
        self.followed = 0
        self.last: Timer | None = None
        self.released: dict[str, Timer] = {}
        """By topic: the last delivered held timer."""
        self.flying: list[Flush] = []
        self.jobs: list[ReadAhead] = []
        self.retirements: list[Retirement] = []
        self.checkpoint: Checkpoint | None = None
        self.is_written = False

    def pass_time(self) -> None:
        step_ms = self.chance.choice(STEPS_MS)
        target_ms = self.now_ms + step_ms
        if self.chance.random() < 0.5:
            if step_ms > MINUTE:
                self.broker.postpone_housekeeping(target_ms)
            self._go_through(target_ms)
        self._tick(target_ms)

    def _go_through(self, target_ms: int) -> None:
        """Advance from event to event, as with a timely clock."""
        for _ in range(40):
            due_ms = self.broker.next_due_ms()
            if due_ms is None or due_ms > target_ms:
                return
            self._tick(max(self.now_ms, due_ms))
            if self.chance.random() < 0.5:
                self.flush()

    def _tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.seen_ms = max(self.seen_ms, now_ms)
        end_offset = self.broker.end_offset
        effects = self.broker.tick(now_ms)
        self._see_appended(end_offset)
        self._carry_out(effects)

    def _see_appended(self, end_offset: int) -> None:
        """Record in the oracle which timers were set again, held, or lost after damage to files."""
        for appended in self.broker.store._appended:
            record = appended.stored
            if not isinstance(record, Record) or appended.offset < end_offset:
                continue
            for ending in endings(record):
                if is_rebuilt(record):
                    was_held = self.oracle.timers[ending.timer_offset].is_held
                    due_ms = self.oracle.timers[ending.timer_offset].due_ms
                    self.oracle.moved(ending.timer_offset, record, due_ms, record.store_ms)
                    self.oracle.timers[record.physical_offset].is_held = was_held
                    self.rebuilt_count += 1
                elif record.topic == TIMER_TOPIC and is_held(record):
                    timer = self.oracle.timers[ending.timer_offset]
                    assert timer.due_ms <= self.seen_ms, "held before it was due"
                    assert self.oracle.is_held(timer.topic, record.physical_offset), (
                        "held, and its topic is not"
                    )
                    self.oracle.held_moved(ending.timer_offset, record)
                    self.held_count += 1
                elif ending.end is End.UNREADABLE:
                    self.oracle.lost(ending.timer_offset, record, self.broker.store.log.first_offset)
        self._note_told()

    def _note_told(self) -> None:
        self.told.update(f"{one.path}: {one.what}" for one in self.broker.damage)

    @property
    def is_whole(self) -> bool:
        """Whether all damage to the files of timers was found and repaired."""
        repair, timers = self.broker.timer_repair, self.broker.timers
        is_at_work = repair._running or repair._applying or repair._rows_without_record or timers.in_doubt
        return not (repair._unchecked or is_at_work or timers.partitions.damage)

    def check_told(self) -> None:
        """Verify that damage to files of timers was reported, once all files were read."""
        for slot, file in self.broker.timers.partitions.files.items() if self.is_whole else ():
            gaps: list[partition.Gap] = []
            if slot.path in self.faults.hit:
                list(partition.parts(self.disk, slot.path, file.length, gaps))
            assert not gaps or any(slot.path in one for one in self.told), f"nothing was told of {gaps}"
        ends = self.broker.timers.ends
        for run in (*ends.names.runs, *ends.ends.runs) if self.is_whole else ():
            if run.path in self.faults.hit and not run.is_sound(self.disk):
                assert any(run.path in one for one in self.told), f"nothing was told of {run.path}"

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CheckBackRequest):
                self.broker.transactions.complete_check_back(
                    effect.transaction_id, False, self.now_ms
                )  # there is no producer
            elif isinstance(effect, RetireSegments):
                self.retirements.append(effect.retirement)
            elif isinstance(effect, RunTimersJob):
                self.jobs.append(effect.job)
                if self.chance.random() < 0.6:
                    self.run_jobs()

    def run_jobs(self, failing: float = 0.1) -> None:
        for job in self.jobs:
            if self.chance.random() < failing:
                self.broker.requeue_timers_job(job)
                continue
            try:
                job.run(self.disk)
            except OSError:
                self.broker.requeue_timers_job(job)
            else:
                self.broker.complete_timers_job(job)
        self.jobs.clear()

    def set_clock_back(self) -> None:
        if self.may_go_back:
            self.went_back = True
            self._tick(self.now_ms - self.chance.choice([10, 200, 5 * SECOND, MINUTE, DAY]))

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

    def take_flush(self) -> None:
        flush = self.broker.take_flush()
        if flush is not None:
            self.flying.append(flush)

    def _retire(self) -> None:
        for retirement in self.retirements:
            if retirement.durable_at <= self.broker.durable_offset:
                self.faults.threaten(0.15)
                try:
                    retirement.run(self.disk)
                except OSError as error:
                    self.retirements = []
                    self.broker.abandon_retirement()
                    if isinstance(error, SyncFailed):
                        self._reopen(self.broker.durable_offset)
                    return
                self.retirements = []
                while self.chance.random() < 0.9:
                    if self.broker.continue_retirement(retirement, self.now_ms):
                        return
                self._reopen(None)
                return

    def _kinds_hit(self, seed: int) -> tuple[str, ...]:
        """Return the kinds of files of which one may be damaged at the end of a process."""
        return TIMER_KINDS if seed % 2 else FACT_KINDS

    def work_on_checkpoint(self) -> None:
        """Take, write or confirm a checkpoint; other steps may run in between."""
        if self.checkpoint is None:
            if self.broker.is_checkpoint_due or self.chance.random() < 0.3:
                while not self.broker.is_quiet:
                    self.flush()
                self.checkpoint, self.is_written = self.broker.checkpoint(self.now_ms), False
        elif not self.is_written:
            self.faults.threaten(0.15)
            self._write_checkpoint()
        else:
            done, self.checkpoint = self.checkpoint, None
            end_offset = self.broker.end_offset
            self.broker.complete_checkpoint(done)
            self._see_appended(end_offset)

    def _write_checkpoint(self) -> None:
        """Write the checkpoint; reopen the broker if a sync fails in it."""
        assert self.checkpoint is not None
        try:
            self.checkpoint.write(self.disk)
            self.is_written = True
        except OSError as error:
            done, self.checkpoint = self.checkpoint, None
            self.broker.abandon_checkpoint(done)
            if isinstance(error, SyncFailed):
                self._reopen(self.broker.durable_offset)

    def fail_checkpoint(self) -> None:
        """Fail a checkpoint midway, possibly followed by a crash."""
        while not self.broker.is_quiet:
            self.flush()
        if self.checkpoint is None:
            self.checkpoint, self.is_written = self.broker.checkpoint(self.now_ms), False
        if not self.is_written:
            self.faults.threaten(1)
            self._write_checkpoint()
        if self.chance.random() < 0.5:
            self.crash()

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
        self.faults.damage(0.3, spares_torn=False)
        self._reopen(None)

    def endure(self, act: Callable[[], object]) -> None:
        """Run an action in which the process may die, or a disk operation fail."""
        self.faults.threaten()
        try:
            act()
        except Death:
            self.die()
        except OSError:
            self._reopen(self.broker.durable_offset)
        except StoreDamaged as met:  # a file damaged while it was closed, and not yet checked
            if not any(path in str(met) for path in self.faults.hit):
                raise
        self.faults.relent()
        if not self.broker.housekeeping.has_reserve:
            self.disk.well()
            self.broker.housekeeping.measure_space()

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

    def _reopen(self, acknowledged_offset: int | None) -> None:
        told_offset = self.broker.durable_offset
        if acknowledged_offset is not None:
            acknowledged_offset = trusted_until(self.disk, acknowledged_offset)
        self.flying.clear()
        self.jobs.clear()
        self.retirements = []
        self.checkpoint, self.last = None, None
        self.released.clear()
        if len(self.histories_ms) > 1:  # a restart with another history
            history_ms = self.chance.choice(self.histories_ms)
            self.settings = replace(self.settings, timer_history_ms=history_ms)
        acknowledged_offset = self.faults.starts_that_die(self._judged, acknowledged_offset)
        self.broker = self._judged(acknowledged_offset)
        assert self.broker.end_offset >= told_offset, "what was told is gone"
        self.oracle.crash(self.broker.end_offset, self.broker.damaged)
        assert not self.oracle.outlived or layout.DURABLE in self.faults.hit, "replacements are lost"
        for topic in TOPICS:
            is_held = topic in self.broker.topics.held
            if is_held != self.oracle.is_held(topic):
                assert self.broker.damaged, "a hold, or its end, is gone"
                self.oracle.holds.append((self.broker.end_offset - 1, topic, is_held))
        self._note_told()
        for timer in self.oracle.pending().values():
            if timer.is_late_set:
                timer.armed_at = None  # it was due when it was set: its slot may differ now
        self.follow()

    def _judged(self, acknowledged_offset: int | None) -> Broker:
        """Open the store, and compare the damage reported by the start with the injected damage."""
        broker = self._open(acknowledged_offset)
        assert not self.faults.lost(broker, self.broker.durable_offset)
        assert not broker.lost or self.faults.has_hit(layout.TIMER_NAMES, layout.TIMER_ENDS), broker.lost
        return broker

    def _open(self, acknowledged_offset: int | None) -> Broker:
        """Open the store; odd seeds read few rows ahead at a time, and split larger partitions."""
        broker = Broker.open(self.disk, self.settings, self.now_ms, acknowledged_offset)
        broker.timers.partitions._rows_max = self.rows_max
        return broker

    # Verification.

    def follow(self) -> None:
        """Read the newly durable part of the log, and verify it against the oracle."""
        end_offset = self.broker.durable_offset
        if self.followed < end_offset:
            scan = LogScan(self.disk, SEGMENT_BYTES, self.followed, end_offset)
            for found in scan:
                self._follow(found.record)
            self.followed = end_offset

    def _follow(self, record: Record) -> None:
        at, stored = record.physical_offset, properties.decode(record.properties)
        if record.topic == TIMER_TOPIC:
            self._follow_set(record)
        elif record.topic == VERB_TOPIC:
            [ending] = endings(record)
            self._is_end(ending.timer_offset, ending.end.name, at)
        elif property_names.TIMER_OFFSET in stored:
            timer = self._named(int(stored[property_names.TIMER_OFFSET]))
            if timer is None:
                return
            self._is_same(properties.to_message(record), timer.message)
            if stored.get(property_names.VERB) == "FIRE":
                self._is_end(timer.offset, "FIRED", at)
            else:
                self._follow_delivery(timer, record)
        if at in self.oracle.verdicts and record.topic in (*TOPICS, TIMER_TOPIC):
            said = stored["TW_TIMER_VERDICT"].split()[0].replace("FORGOTTEN", "NEVER_SET")
            assert said == self.oracle.verdicts[at], f"told {said}, it is {self.oracle.verdicts[at]}"

    def _is_same(self, found: Message, sent: Message) -> None:
        """Verify that a delivered message equals the sent one, except for the verdict of a carried verb."""
        found.properties.pop("TW_TIMER_VERDICT", None)
        assert found.properties == sent.properties
        assert (found.topic, found.message_id, found.body, found.tag, found.keys) == (
            sent.topic, sent.message_id, sent.body, sent.tag, sent.keys,
        )  # fmt: skip

    def _follow_set(self, record: Record) -> None:
        timer = self.oracle.timers.get(record.physical_offset)
        assert timer is not None, f"nobody set the timer at {record.physical_offset}"
        assert due_ms_of(record) == timer.due_ms
        timer.armed_at, timer.sort_ms = self.broker.end_offset, max(timer.due_ms, self.seen_ms)
        assert timer.is_held == is_held(record)
        timer.is_late_set = not timer.is_held and (self.went_back or timer.due_ms <= self.seen_ms)
        for replaced in endings(record):
            old = self._named(replaced.timer_offset)
            if old is not None:
                assert (old.ended_offset, old.due_ms) == (timer.offset, replaced.due_ms)
                old.is_seen = True

    def _named(self, timer_offset: int) -> Timer | None:
        """Return the timer named by a record; None if its unacknowledged record was lost in a gap."""
        gaps = self.broker.damaged
        if timer_offset in self.oracle.timers:
            return self.oracle.timers[timer_offset]
        is_lost = any(gap.first_offset <= timer_offset < gap.end_offset for gap in gaps)
        assert is_lost, f"nobody set the timer at {timer_offset}"
        return None

    def _is_end(self, timer_offset: int, how: str, at: int) -> None:
        timer = self._named(timer_offset)
        if timer is None:
            return
        assert (timer.ended, timer.ended_offset) == (how, at), f"{how} at {at}, yet {timer}"
        timer.is_seen = True

    def _follow_delivery(self, timer: Timer, record: Record) -> None:
        at = record.physical_offset
        if not timer.ended:
            self.oracle.end(timer, "DELIVERED", at, record.store_ms)
        self._is_end(timer.offset, "DELIVERED", at)
        is_held = self.oracle.is_held(timer.topic, at) and not self.faults.gaps
        assert not is_held, f"delivered while its topic is held: {timer}"
        assert timer.is_held == (property_names.HELD in properties.decode(record.properties))
        assert timer.due_ms <= record.store_ms, f"early: {timer}"
        assert timer.due_ms <= self.seen_ms, f"early: {timer}"
        if timer.is_held:
            self._follow_release(timer)
            return
        last, self.last = self.last, timer
        if last is not None and timer.armed_at is not None and not self.went_back:
            was_there = timer.armed_at <= last.ended_offset
            is_earlier = (timer.due_ms, timer.offset) < (last.due_ms, last.offset)
            is_before = (timer.sort_ms, timer.offset) < (last.sort_ms, last.offset)
            # A damaged record is read separately, before others; one lost in a gap is delivered again.
            is_excused = self.faults.has_hit(layout.TIMERS) or bool(self.faults.gaps)
            assert is_excused or not (was_there and is_earlier and is_before), (
                f"out of order: {last}, then {timer}"
            )

    def _follow_release(self, timer: Timer) -> None:
        """Verify that held timers of a topic are delivered in the order of their due times."""
        last = self.released.get(timer.topic)
        self.released[timer.topic] = timer
        if last is not None and timer.armed_at is not None:
            was_there = timer.armed_at <= last.ended_offset
            is_earlier = (timer.due_ms, timer.offset) < (last.due_ms, last.offset)
            is_excused = self.faults.has_hit(layout.TIMERS) or bool(self.faults.gaps)
            assert is_excused or not (was_there and is_earlier), (
                f"released out of order: {last}, then {timer}"
            )
