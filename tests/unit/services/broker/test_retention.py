"""What deleting the log may not change, and what a full disk may not stop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from errno import EIO
from typing import Any
from unittest.mock import patch

import pytest

from commitlog import layout, limits
from commitlog.disk.disk import SyncFailed
from commitlog.log import retention
from commitlog.log.recovery import LogScan
from commitlog.log.retention import Deletion, RetentionPolicy, Retirement, SegmentAge
from commitlog.records.kinds import RETENTION_TOPIC
from commitlog.records.message import Message, MessageType
from commitlog.snapshots import snapshot
from consumequeue import queue as queue_module
from consumequeue.dispatch import files_named
from consumequeue.entry import ENTRY_BYTES
from consumequeue.filters.filter import EVERYTHING
from consumequeue.groups.receipts import decode
from services.broker.broker import Broker
from services.broker.derived import QUEUES
from services.broker.groups.group_values import GroupStart
from services.broker.spine.errors import DiskFull
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import (
    Delivery,
    Effect,
    HalfFilter,
    LogWarning,
    Resolution,
    RetireSegments,
    RunTimersJob,
    SendReceipt,
    StartPosition,
    Verdict,
)
from services.store.repair import repair
from tests.memory_disk import Fault, MemoryDisk
from tests.missed_counts import missed_counts
from tests.simulation.second_core import copy_files, differing_tables
from tests.simulation.tables import tables
from tidewheel.errors import TransactionEnded
from txn.checkback import CheckBackPolicy

NOW_MS = 1_763_700_000_000
SEGMENT_BYTES = 8 * 1024
KEEP_ALL = BrokerSettings(
    segment_bytes=SEGMENT_BYTES,
    housekeeping_ms=1_000,
    check_back=CheckBackPolicy(immunity_ms=1_000, count_max=0),
)
KEEP_ONE = replace(KEEP_ALL, retention=RetentionPolicy(log_bytes_max=SEGMENT_BYTES, group_pin_ms=0))


class Bench:
    """A broker whose shell does at once what the effects say."""

    def __init__(self, tail_entries_max: int = limits.TAIL_ENTRIES_MAX) -> None:
        self.disk = MemoryDisk()
        self.now_ms = NOW_MS
        self.settings = replace(KEEP_ALL, tail_entries_max=tail_entries_max)
        self.count = 0
        self.halves: list[SendReceipt] = []
        self.deletions: list[Deletion] | None = None
        """Where deletions go that are not run at once."""
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)

    def send(self, **attributes: object) -> SendReceipt:
        self.count += 1
        given = {"topic": "t", "body": b"x" * 500, "message_id": f"M{self.count}"} | attributes
        receipt = self.broker.sending.send(Message(**given), self.now_ms)  # type: ignore[arg-type]
        self.flush()
        return receipt

    def flush(self) -> None:
        while flush := self.broker.take_flush():
            flush.write()
            self.carry_out(self.broker.complete_flush(flush, self.now_ms))
        if self.broker.is_checkpoint_due:
            checkpoint = self.broker.checkpoint(self.now_ms)
            checkpoint.write(self.disk)
            self.broker.complete_checkpoint(checkpoint)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, RetireSegments):
                self.retire(effect.retirement)
            if isinstance(effect, RunTimersJob):
                effect.job.run(self.disk)
                self.broker.complete_timers_job(effect.job)

    def retire(self, retirement: Retirement) -> None:
        if isinstance(retirement, Deletion) and self.deletions is not None:
            self.deletions.append(retirement)
            return
        retirement.run(self.disk)
        while not self.broker.continue_retirement(retirement, self.now_ms):
            self.flush()

    def advance(self, milliseconds: int) -> None:
        end_ms = self.now_ms + milliseconds
        while (due_ms := self.broker.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.carry_out(self.broker.tick(self.now_ms))
            self.flush()
        self.now_ms = end_ms

    def receive(self, group: str = "g") -> list[Delivery]:
        return self.broker.receiving.receive(
            group, "t", EVERYTHING, 32, 20_000, "c", False, self.now_ms
        ).deliveries

    def reopen(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.broker = Broker.open(self.disk, settings, self.now_ms)

    def segments(self) -> list[str]:
        return self.disk.list("commitlog")


def test_all_but_the_newest_segment_may_go_and_nothing_else_changes() -> None:
    bench = Bench()
    expired = bench.send(transactional=True)
    bench.advance(2_000)
    still_open = bench.send(transactional=True, check_immunity_ms=3_600_000)
    cancelled = bench.send(delivery_ms=bench.now_ms + 600_000)
    pending = bench.send(delivery_ms=bench.now_ms + 600_000)
    for _ in range(40):
        bench.send()
    handles = [one.receipt_handle for one in bench.receive()]
    for handle in handles[:10]:
        bench.broker.receiving.ack("g", "t", handle, bench.now_ms)
    bench.flush()
    before = bench.broker.gauges()
    assert len(bench.segments()) > 3

    bench.reopen(KEEP_ONE)
    bench.advance(10_000)
    assert len(bench.segments()) == 1
    assert len(bench.disk.list("keep")) == 1
    for derived in ("consumequeue", "keyindex"):
        bench.disk.delete(derived)
    bench.reopen(KEEP_ONE)

    after = bench.broker.gauges()
    assert (after.open_halves, after.pending_timers) == (before.open_halves, before.pending_timers) == (1, 2)
    assert bench.broker.topics.get("t").queue_count == 4
    ended = (expired.transaction_id, expired.message_id)
    with pytest.raises(TransactionEnded, match="EXPIRED"):
        bench.broker.transactions.end("t", *ended, Resolution.COMMIT, bench.now_ms)
    commit = (still_open.transaction_id, still_open.message_id, Resolution.COMMIT)
    assert not bench.broker.transactions.end("t", *commit, bench.now_ms).repeated
    verdict = bench.broker.timers.recall("t", cancelled.recall_handle, bench.now_ms).verdict
    assert verdict is Verdict.CANCELLED
    new = bench.send()
    bench.advance(700_000)
    got = {one.message.message_id for one in bench.receive()}
    assert {still_open.message_id, pending.message_id, new.message_id} <= got
    assert cancelled.message_id not in got
    assert not got & {f"M{number}" for number in range(5, 15)}, "an acknowledged message came again"


@pytest.fixture
def cut() -> Bench:
    """A bench with two open halves and a group that lags; its log is cut, and nothing of it deleted yet."""
    bench = Bench()
    bench.halves = [bench.send(transactional=True, check_immunity_ms=3_600_000) for _ in range(2)]
    bench.receive("lagging")
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    bench.deletions = []
    bench.advance(10_000)
    assert len(bench.deletions) == 1
    assert len(bench.segments()) > 3
    return bench


def commit(bench: Bench, half: SendReceipt) -> None:
    ended = (half.transaction_id, half.message_id, Resolution.COMMIT)
    assert not bench.broker.transactions.end("t", *ended, bench.now_ms).repeated


def test_a_half_can_be_ended_while_its_segment_is_being_deleted(cut: Bench) -> None:
    commit(cut, cut.halves[0])
    deletion, cut.deletions = cut.deletions[0], None
    cut.retire(deletion)
    commit(cut, cut.halves[1])
    cut.flush()
    assert len(cut.segments()) == 1
    cut.reopen(KEEP_ONE)
    assert cut.broker.gauges().open_halves == 0


def test_nobody_reads_what_is_being_deleted(cut: Bench) -> None:
    skipped = missed_counts(cut.broker)[("t", "lagging")]
    cut.disk.delete(f"commitlog/{cut.segments()[0]}")
    got = [decode(one.receipt_handle).physical_offset for one in cut.receive("lagging")]
    assert got
    assert min(got) >= cut.deletions[0].cut_offset
    assert skipped == 40 - len(got)


def test_a_deletion_that_failed_half_way_is_carried_on(cut: Bench) -> None:
    before = cut.segments()
    cut.disk.strike(2, Fault.FAILS)
    with pytest.raises(OSError, match="fails by the test"):
        cut.deletions[0].run(cut.disk)
    cut.disk.well()
    cut.broker.abandon_retirement()
    assert len(cut.segments()) == len(before) - 1
    cut.deletions = None
    cut.advance(1_000)
    assert len(cut.segments()) == 1
    cut.reopen(KEEP_ONE)
    assert not cut.broker.damage
    assert [one.state.value for one in cut.broker.half_views.page(HalfFilter(), None, 9).halves] == [
        "OPEN",
        "OPEN",
    ]


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_start_deletes_what_was_cut_off_before_it(cut: Bench, has_snapshot: bool) -> None:
    """Whether it reads of the cut in the log or in a snapshot: nobody sees what is left of the files."""
    if has_snapshot:
        cut.broker.checkpoint(cut.now_ms).write(cut.disk)
    first_offset, ages = cut.broker.gauges().log_first_offset, cut.broker.store.segment_ages()
    ranges = [cut.broker.finding.queue_range("t", queue_id) for queue_id in range(4)]
    cut.reopen(KEEP_ALL)
    assert len(cut.segments()) > 3
    assert cut.broker.gauges().log_first_offset == first_offset
    assert cut.broker.store.segment_ages() == ages
    assert [cut.broker.finding.queue_range("t", queue_id) for queue_id in range(4)] == ranges
    cut.deletions = None
    cut.advance(1_000)
    assert len(cut.segments()) == 1
    assert not cut.broker.damage
    commit(cut, cut.halves[0])


def retirement_of(bench: Bench) -> Retirement:
    """Let time pass until segments are to go; return what is to run for that."""
    for _ in range(60):
        bench.now_ms += 1_000
        effects = bench.broker.tick(bench.now_ms)
        bench.flush()
        for one in effects:
            if isinstance(one, RetireSegments):
                return one.retirement
    pytest.fail("no segment is to go")


def test_a_cut_that_was_not_durable_has_deleted_nothing() -> None:
    bench = Bench()
    half = bench.send(transactional=True, check_immunity_ms=3_600_000)
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    before = bench.segments()
    bench.retire(retirement_of(bench))
    assert bench.disk.list("keep")
    assert bench.broker.gauges().log_first_offset > 0
    assert not [one for one in bench.broker.tick(bench.now_ms + 9_000) if isinstance(one, RetireSegments)]
    bench.reopen(KEEP_ALL)  # the record of the cut is lost
    assert bench.broker.gauges().log_first_offset == 0
    assert bench.segments()[: len(before)] == before
    commit(bench, half)


def test_a_keep_file_whose_name_did_not_come_to_the_disk_is_not_taken_for_kept() -> None:
    """A start finds it, and the power goes once the record of the cut is durable."""
    bench = Bench()
    half = bench.send(transactional=True, check_immunity_ms=3_600_000)
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    keeping = retirement_of(bench)
    bench.disk.strike(3, Fault.FAILS_WITHIN)  # the rename: it can be seen, and is not on disk
    with pytest.raises(SyncFailed, match=r"keep\.new"):
        keeping.run(bench.disk)
    bench.reopen(KEEP_ONE)
    assert bench.disk.list("keep")
    bench.advance(10_000)
    assert bench.broker.gauges().log_first_offset > half.physical_offset
    bench.disk.crash(lambda _: 0)
    bench.reopen(KEEP_ONE)
    commit(bench, half)


def test_nothing_is_decided_or_deleted_while_a_cut_is_not_durable() -> None:
    """Files of queues that it leaves empty are needed again if it is lost."""
    bench = Bench()
    for _ in range(120):
        bench.send()
    bench.reopen(replace(KEEP_ONE, retention=RetentionPolicy(log_bytes_max=5 * SEGMENT_BYTES)))
    retirement = retirement_of(bench)
    before = bench.segments()
    bench.retire(retirement)
    for number in range(20):
        message = Message(topic="t", body=b"x" * 500, message_id=f"later {number}")
        bench.broker.sending.send(message, bench.now_ms)
    assert not [one for one in bench.broker.tick(bench.now_ms + 9_000) if isinstance(one, RetireSegments)]
    assert bench.segments() == before
    bench.flush()
    effects = bench.broker.tick(bench.now_ms + 9_000)
    assert [type(one.retirement) for one in effects if isinstance(one, RetireSegments)] == [Deletion]


def cuts(bench: Bench) -> list[Any]:
    """The bodies of the records of cuts."""
    found = [one.record for one in LogScan(bench.disk, SEGMENT_BYTES) if one.record.topic == RETENTION_TOPIC]
    return [body for one in found if "queues" in (body := json.loads(one.body))]


def test_a_cut_of_many_queues_takes_several_records_of_which_the_last_cuts() -> None:
    bench = Bench()
    bench.receive("lagging")
    for _ in range(40):
        bench.send()
    bench.reopen(replace(KEEP_ONE, cut_queues_max=3))
    bench.deletions = []
    bench.advance(10_000)
    assert [(one["done"], len(one["queues"]), len(one["skipped"])) for one in cuts(bench)] == [
        (False, 3, 3),
        (True, 1, 1),
    ]
    assert sum(row[-1] for one in cuts(bench) for row in one["skipped"]) == 40 - len(bench.receive("lagging"))
    ranges = [bench.broker.finding.queue_range("t", queue_id) for queue_id in range(4)]
    bench.reopen(KEEP_ALL)
    assert [bench.broker.finding.queue_range("t", queue_id) for queue_id in range(4)] == ranges


def test_a_cut_of_queues_with_many_groups_looks_at_fewer_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """80,000 queues of 1,000 groups are as bounded in a turn as queues that nobody receives."""
    monkeypatch.setattr(limits, "CUT_QUEUE_GROUPS", 5)
    bench = Bench()
    for number in range(10):
        bench.receive(f"g{number}")
    for _ in range(40):
        bench.send()
    bench.reopen(replace(KEEP_ONE, cut_queues_max=3))
    told = cut_and_told(bench)
    assert [(one["done"], len(one["queues"]), len(one["skipped"])) for one in cuts(bench)] == [
        (False, 1, 10),
        (False, 1, 10),
        (False, 1, 10),
        (True, 1, 10),
    ]
    assert len(told) == 10
    assert missed_counts(bench.broker) == {
        ("t", f"g{number}"): sum(first_offsets(bench)) for number in range(10)
    }


def test_many_rows_of_what_groups_missed_take_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CUT_ROWS_PER_RECORD_MAX", 3)
    bench = Bench()
    bench.receive("one")
    bench.receive("two")
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    bench.advance(10_000)
    first, second, third = cuts(bench)
    assert [one["done"] for one in (first, second, third)] == [False, False, True]
    assert [len(one["skipped"]) for one in (first, second, third)] == [3, 3, 2]
    assert (len(first["queues"]), second["queues"], third["queues"]) == (4, [], [])


def test_a_cut_that_ends_after_some_queues_is_carried_on_and_counts_nothing_twice() -> None:
    bench = Bench()
    bench.receive("lagging")
    for _ in range(40):
        bench.send()
    bench.reopen(replace(KEEP_ONE, cut_queues_max=2))
    keeping = retirement_of(bench)
    keeping.run(bench.disk)
    assert not bench.broker.continue_retirement(keeping, bench.now_ms)
    bench.flush()
    bench.reopen(replace(KEEP_ONE, cut_queues_max=2))
    assert bench.broker.gauges().log_first_offset == 0
    assert [len(one["queues"]) for one in cuts(bench)] == [2]
    bench.deletions = []
    bench.advance(10_000)
    assert bench.broker.gauges().log_first_offset > 0
    missed = Counter[int]()
    for one in cuts(bench):
        for _, _, queue_id, count in one["skipped"]:
            missed[queue_id] += count
    for queue_id in range(4):
        assert missed[queue_id] == bench.broker.finding.queue_range("t", queue_id)[0]


def test_a_group_that_joined_after_a_cut_missed_nothing_of_it() -> None:
    """It begins where the queues do, and the next cut counts from there on."""
    bench = Bench()
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    bench.advance(10_000)
    assert bench.broker.gauges().log_first_offset > 0
    bench.broker.groups.join("late", "t", {}, bench.now_ms)
    begins = sum(bench.broker.finding.queue_range("t", queue_id)[0] for queue_id in range(4))
    for _ in range(40):
        bench.send()
    bench.advance(10_000)
    missed = sum(bench.broker.finding.queue_range("t", queue_id)[0] for queue_id in range(4)) - begins
    assert missed_counts(bench.broker)[("t", "late")] == missed > 0
    assert len(bench.receive("late")) == 80 - begins - missed


SIX = RetentionPolicy(log_bytes_max=6 * SEGMENT_BYTES, group_pin_ms=0)


def damaged_and_cut(
    queue_ids: tuple[int, ...] = (0,), topic: str = "t", sound: MemoryDisk | None = None, **settings: int
) -> Bench:
    """A bench with a group that lags, whose log was cut while files of some queues were damaged.

    A topic `u`, where one is asked for, has 10 messages, all of which were cut off. `sound` gets a copy of
    the store before the damage.
    """
    bench = Bench(tail_entries_max=1)
    bench.receive("lagging")
    if topic == "u":
        bench.broker.topics.create("u", MessageType.NORMAL, 1, bench.now_ms)
        bench.broker.receiving.join("lagging", "u", bench.now_ms)
        for _ in range(10):
            bench.send(topic="u")
    for _ in range(100):
        bench.send()
    kept_on_disk(bench)
    if sound is not None:
        copy_files(bench.disk, sound)
    for queue_id in queue_ids:
        bench.disk.flip_bit(f"consumequeue/{topic}/{queue_id}/{0:020}", 30 * 8)
    bench.reopen(replace(KEEP_ALL, tail_entries_max=1, retention=SIX, **settings))
    bench.advance(10_000)
    assert bench.broker.gauges().log_first_offset > 0
    return bench


def first_offsets(bench: Bench) -> list[int]:
    """Where each queue of t begins."""
    return [bench.broker.finding.queue_range("t", queue_id)[0] for queue_id in range(4)]


def missed_of(bench: Bench, topic: str = "t", queue_id: int = 0) -> list[list[Any]]:
    """What records say that groups missed of a queue: [group, count]."""
    rows = [row for one in cuts(bench) for row in one["skipped"]]
    return [[group, count] for group, *queue, count in rows if queue == [topic, queue_id]]


def checkpoint_of(broker: Broker, bench: Bench) -> None:
    checkpoint = broker.checkpoint(bench.now_ms)
    checkpoint.write(bench.disk)
    broker.complete_checkpoint(checkpoint)


def checkpoint_of_a_leader(bench: Bench) -> None:
    bench.reopen(bench.settings)
    checkpoint_of(bench.broker, bench)


def checkpoint_of_a_follower(bench: Bench) -> None:
    checkpoint_of(Broker.recover(bench.disk, bench.settings, bench.now_ms), bench)


def checkpoint_of_a_repair(bench: Bench) -> None:
    repair._make_derived(bench.disk, bench.now_ms)


def checkpoint_and_damage(bench: Bench) -> None:
    """The snapshot says that the queue has risen, and its file is made anew once more."""
    checkpoint_of_a_leader(bench)
    bench.disk.delete(layout.QUEUES_WHOLE)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "checkpoints",
    [checkpoint_of_a_leader, checkpoint_of_a_follower, checkpoint_of_a_repair, checkpoint_and_damage],
)
def test_a_checkpoint_before_it_is_recorded_does_not_hide_what_a_group_missed(
    checkpoints: Callable[[Bench], None], times: int
) -> None:
    bench = damaged_and_cut()
    for _ in range(times):
        checkpoints(bench)
    bench.reopen(bench.settings)
    bench.advance(1_000)
    begins = bench.broker.finding.queue_range("t", 0)[0]
    assert begins > 0
    assert missed_of(bench) == [["lagging", begins]]
    assert missed_counts(bench.broker) == {("t", "lagging"): sum(first_offsets(bench))}
    assert bench.broker.group_views.view_group("lagging").queues[0].committed_offset == begins
    checkpoint_of(bench.broker, bench)
    bench.reopen(bench.settings)
    bench.advance(1_000)
    assert missed_of(bench) == [["lagging", begins]], "it is said once"


def test_what_is_received_before_it_is_recorded_hides_nothing_of_what_a_group_missed() -> None:
    bench = damaged_and_cut()
    bench.reopen(bench.settings)
    got = []
    while some := bench.receive("lagging"):
        got += some
        for one in some:
            bench.broker.receiving.ack("lagging", "t", one.receipt_handle, bench.now_ms)
        bench.flush()
    received = sum(decode(one.receipt_handle).queue_id == 0 for one in got)
    assert received > 0
    bench.reopen(bench.settings)
    bench.advance(1_000)
    begins = bench.broker.finding.queue_range("t", 0)[0]
    assert missed_of(bench) == [["lagging", begins]]
    assert bench.broker.group_views.view_group("lagging").queues[0].committed_offset == begins + received


def test_a_cut_before_it_is_recorded_counts_all_that_a_group_missed() -> None:
    bench = damaged_and_cut()
    bench.reopen(bench.settings)
    broker, dispatch = bench.broker, bench.broker.store.dispatch
    before = broker.finding.queue_range("t", 0)[0]
    for _ in range(40):
        bench.send()
    with patch.object(type(dispatch), "has_unrecorded", False):
        bench.advance(10_000)
    begins = broker.finding.queue_range("t", 0)[0]
    assert begins > before
    assert missed_of(bench) == [["lagging", begins]]
    assert not dispatch.has_unrecorded


@pytest.mark.parametrize("copied", ["before the damage", "after the cut", "behind a checkpoint"])
def test_a_follower_comes_to_what_a_leader_says_of_a_damaged_queue(copied: str) -> None:
    """Whether it has made that queue anew itself, or its files were sound."""
    disk = MemoryDisk()
    bench = damaged_and_cut(sound=disk if copied == "before the damage" else None)
    if copied == "behind a checkpoint":
        checkpoint_of_a_leader(bench)
    if copied != "before the damage":
        copy_files(bench.disk, disk)
    follower = Broker.recover(disk, bench.settings, bench.now_ms)
    assert bool(follower.rebuilt_files) == (copied == "after the cut")
    assert follower.store.dispatch.has_unrecorded == (copied != "before the damage")
    bench.reopen(bench.settings)
    bench.advance(1_000)
    leader, core = bench.broker, follower
    for found in LogScan(bench.disk, SEGMENT_BYTES, core.end_offset, stop_at=leader.durable_offset):
        path, position = leader.store.log.segments.place(found.record.physical_offset)
        stored = bytes(bench.disk.view(path)[position : position + found.record_bytes])
        core.append_replicated([stored], found.record.physical_offset + len(stored), bench.now_ms)
    core.append_replicated([], leader.durable_offset, bench.now_ms)
    assert not core.store.dispatch.has_unrecorded
    assert leader.finding.queue_range("t", 0)[0] > 0
    assert differing_tables(tables(leader), tables(core)) == {}


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("joins", ["receive", "create", "join"])
def test_a_group_that_joined_after_a_cut_missed_nothing_of_a_damaged_queue(joins: str, is_kept: bool) -> None:
    """Where the queue begins is not known then; the record of the group says where the log did."""
    bench = damaged_and_cut()
    if joins == "receive":
        bench.receive("late")
    elif joins == "create":
        bench.broker.group_views.create("late", "t", GroupStart(StartPosition.EARLIEST, 0), bench.now_ms)
    else:
        bench.broker.groups.join("late", "t", {}, bench.now_ms)
    bench.flush()
    if is_kept:
        checkpoint_of(bench.broker, bench)
    bench.reopen(bench.settings)
    bench.advance(1_000)
    begins = bench.broker.finding.queue_range("t", 0)[0]
    assert begins > 0
    assert missed_of(bench) == [["lagging", begins]]
    for _ in range(40):
        bench.send()
    bench.advance(10_000)
    missed = bench.broker.finding.queue_range("t", 0)[0] - begins
    assert missed > 0
    for group in ("lagging", "late"):
        assert sum(count for one, count in missed_of(bench)[1:] if one == group) == missed


def test_a_damaged_queue_of_which_the_log_has_nothing_more_is_missed_whole() -> None:
    bench = damaged_and_cut(topic="u")
    assert not missed_of(bench, "u")
    bench.reopen(bench.settings)
    bench.advance(1_000)
    assert bench.broker.finding.queue_range("u", 0) == (10, 10)
    assert missed_of(bench, "u") == [["lagging", 10]]
    bench.send(topic="u")
    bench.reopen(bench.settings)
    (got,) = bench.broker.receiving.receive(
        "lagging", "u", EVERYTHING, 32, 20_000, "c", False, bench.now_ms
    ).deliveries
    assert decode(got.receipt_handle).queue_offset == 10


def test_what_is_recorded_of_damaged_queues_takes_several_turns() -> None:
    bench = damaged_and_cut((0, 1, 2, 3), cut_queues_max=1)
    before = len(cuts(bench))
    bench.reopen(bench.settings)
    for turn in range(1, 5):
        assert bench.broker.housekeeping.has_more
        assert bench.broker.next_due_ms() <= bench.now_ms
        bench.broker.tick(bench.now_ms)
        bench.flush()
        assert len(cuts(bench)) == before + turn
    assert not bench.broker.store.dispatch.has_unrecorded
    for queue_id in range(4):
        begins = bench.broker.finding.queue_range("t", queue_id)[0]
        assert missed_of(bench, "t", queue_id) == [["lagging", begins]]


def test_what_a_group_misses_of_a_damaged_queue_is_recorded_at_the_next_start() -> None:
    """A cut cannot say it, since the queue's file does not tell where in the log its entries lie."""
    bench = damaged_and_cut()
    before = sum(row[-1] for one in cuts(bench) for row in one["skipped"])
    assert {row[2] for one in cuts(bench) for row in one["skipped"]} == {1, 2, 3}
    bench.reopen(bench.settings)
    bench.advance(1_000)
    found = cuts(bench)[-1]
    assert (found["cut_offset"], found["done"]) == (0, False)
    assert [row[2] for row in found["skipped"]] == [0]
    begins = bench.broker.finding.queue_range("t", 0)[0]
    assert found["queues"] == [["t", 0, begins]]
    assert found["skipped"] == [["lagging", "t", 0, begins]]
    assert begins > 0
    assert missed_counts(bench.broker) == {("t", "lagging"): sum(first_offsets(bench))}
    got = 0
    while some := bench.receive("lagging"):
        got += len(some)
        for one in some:
            bench.broker.receiving.ack("lagging", "t", one.receipt_handle, bench.now_ms)
        bench.flush()
    assert got + before + begins == 100
    count = len(cuts(bench))
    bench.reopen(bench.settings)
    bench.advance(1_000)
    assert len(cuts(bench)) == count, "it is said once"


class Counting(MemoryDisk):
    """A disk that counts the bytes that are read of files of queues."""

    queue_bytes = 0

    def read(self, path: str, position: int, length: int) -> bytes:
        self.queue_bytes += length if path.startswith("consumequeue/") else 0
        return super().read(path, position, length)


def test_one_turn_of_a_look_compares_few_files_of_lagging_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they wait for what lies in later files than those in which the queues begin."""
    monkeypatch.setattr(queue_module, "_FILE_BYTES", 64 * ENTRY_BYTES)
    monkeypatch.setattr(limits, "CUT_QUEUE_BYTES", 64)
    bench, disk = Bench(tail_entries_max=1), Counting()
    bench.disk = disk
    bench.reopen(replace(bench.settings, queue_count=1))
    for number in range(1000):
        bench.send(topic=f"t{number % 10}")
    bench.broker.store.dispatch.write()
    for number in range(10):
        bench.broker.group_views.create("g", f"t{number}", GroupStart(StartPosition.OFFSET, 70), bench.now_ms)
    bench.flush()
    kept_on_disk(bench)
    six = RetentionPolicy(log_bytes_max=6 * SEGMENT_BYTES, group_pin_ms=3_600_000)
    bench.reopen(replace(bench.settings, cut_queues_max=10, retention=six))
    for number in range(10):
        bench.broker.finding.read(f"t{number}", 0, 0, 1)
    turns = 0
    bench.now_ms += 1_000
    disk.queue_bytes = 0
    while (before := disk.queue_bytes) == 0 or bench.broker.housekeeping.has_more:
        bench.carry_out(bench.broker.tick(bench.now_ms))
        assert disk.queue_bytes - before <= 64 * ENTRY_BYTES + 10 * ENTRY_BYTES, "one file, some entries"
        turns += 1
    assert turns >= 10
    assert disk.queue_bytes > 10 * 30 * ENTRY_BYTES, "all that groups wait for was looked at"


class Unnamed(MemoryDisk):
    """A disk on which the names of snapshots cannot be synced: they can be seen, and go with the power."""

    def rename(self, path: str, new_path: str) -> None:
        if new_path.startswith(layout.SNAPSHOTS):
            self.strike(1, Fault.FAILS_WITHIN)
        super().rename(path, new_path)


def test_a_cut_behind_a_lost_file_of_a_lite_topic_leaves_its_index_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that a start finds gone may be one that a cut has deleted, so the queues are not made anew."""
    monkeypatch.setattr(queue_module, "_FILE_BYTES", 8 * ENTRY_BYTES)
    bench = Bench(tail_entries_max=1)
    bench.broker.topics.create("t", MessageType.LITE, 1, bench.now_ms)
    for _ in range(100):
        bench.send(lite_topic="a")
    bench.broker.store.dispatch.write()
    checkpoint = bench.broker.checkpoint(bench.now_ms)
    checkpoint.write(bench.disk)
    bench.broker.complete_checkpoint(checkpoint)
    bench.disk.delete(f"consumequeue/t/0/{0:020d}")
    bench.reopen(replace(KEEP_ONE, tail_entries_max=1))
    assert not bench.broker.rebuilt_files
    bench.advance(30_000)
    assert bench.broker.gauges().log_first_offset > 0
    bench.send(lite_topic="a")
    assert bench.broker.lite_topics.count(bench.broker.topics.get("t")) == 1


def test_snapshots_whose_names_are_not_on_disk_are_made_durable_by_the_start_that_finds_them() -> None:
    bench = Bench()
    bench.disk.__class__ = Unnamed
    for _ in range(2):
        for _ in range(10):
            bench.send()
        with pytest.raises(SyncFailed):
            bench.broker.checkpoint(bench.now_ms).write(bench.disk)
        bench.disk.well()
        bench.reopen(KEEP_ALL)
    found = snapshot.offsets(bench.disk)
    assert len(found) == 2
    bench.disk.crash(lambda _: 0)
    assert snapshot.offsets(bench.disk) == found


def test_keep_files_go_when_nobody_needs_them() -> None:
    bench = Bench()
    half = bench.send(transactional=True, check_immunity_ms=3_600_000)
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    bench.advance(10_000)
    assert bench.disk.list("keep")
    bench.broker.transactions.end(
        "t", half.transaction_id, half.message_id, Resolution.ROLLBACK, bench.now_ms
    )
    for _ in range(40):
        bench.send()
    bench.advance(10_000)
    assert bench.disk.list("keep") == []
    bench.reopen(KEEP_ONE)
    assert bench.broker.gauges().open_halves == 0


def test_halves_whose_keep_file_is_gone_are_rolled_back_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for _ in range(7):
        bench.send(transactional=True, check_immunity_ms=3_600_000)
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    bench.advance(10_000)
    for name in bench.disk.list("keep"):
        bench.disk.delete(f"keep/{name}")
    bench.reopen(KEEP_ONE)
    monkeypatch.setattr(limits, "HALVES_KEPT_EXAMINED_AT_ONCE", 3)
    left = [bench.broker.gauges().open_halves]
    for _ in range(3):
        bench.broker.tick(bench.now_ms)  # a look at the house is due with each
        bench.flush()
        left.append(bench.broker.gauges().open_halves)
        bench.now_ms += bench.settings.housekeeping_ms
    assert left == [7, 4, 1, 0]


def test_a_lagging_group_holds_the_log_for_its_time_and_is_then_moved_on() -> None:
    bench = Bench()
    bench.receive("slow")
    for _ in range(40):
        bench.send()
    bench.reopen(
        replace(KEEP_ONE, retention=RetentionPolicy(log_bytes_max=SEGMENT_BYTES, group_pin_ms=60_000))
    )
    bench.advance(10_000)
    assert len(bench.segments()) > 3
    bench.advance(120_000)
    assert len(bench.segments()) == 1
    skipped = missed_counts(bench.broker)[("t", "slow")]
    assert skipped > 20
    assert len(bench.receive("slow")) == 40 - skipped


def cut_and_told(bench: Bench) -> list[str]:
    """Let retention cut the log; return what it tells the broker's log meanwhile."""
    told: list[str] = []
    carry_out = bench.carry_out

    def noting(effects: list[Effect]) -> None:
        told.extend(one.text for one in effects if isinstance(one, LogWarning))
        carry_out(effects)

    with patch.object(bench, "carry_out", noting):
        bench.advance(10_000)
    return [one for one in told if one.startswith("Retention")]


def test_what_a_group_missed_is_told_once_and_counted_over_restarts() -> None:
    bench = Bench()
    bench.receive("lagging")
    for _ in range(40):
        bench.send()
    bench.reopen(replace(KEEP_ONE, cut_queues_max=1))
    [told] = cut_and_told(bench)
    count = missed_counts(bench.broker)["t", "lagging"]
    assert 0 < count == 40 - len(bench.receive("lagging"))
    assert told.startswith(f"Retention deleted {count:,} messages of topic t that group lagging had not ")
    assert told.endswith("See: tidewheel group show lagging")
    [view] = bench.broker.group_views.view_group("lagging").missed
    assert (view.topic, view.count) == ("t", count)
    assert NOW_MS < view.last_ms <= bench.now_ms
    for is_from_log in (True, False):  # the log alone says it, then the snapshot
        bench.reopen(KEEP_ALL)
        assert bench.broker.group_views.view_group("lagging").missed == (view,), is_from_log
        checkpoint_of(bench.broker, bench)
    assert cut_and_told(bench) == []


def test_what_groups_missed_is_told_of_the_largest_losses_and_counted_for_the_others() -> None:
    bench = Bench()
    for number in range(14):
        bench.receive(f"g{number}")
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    told = cut_and_told(bench)
    assert len(told) == 11
    count = missed_counts(bench.broker)["t", "g0"]
    assert told[-1].startswith(f"Retention deleted {4 * count:,} messages in all that 4 more subscriptions")


def test_a_group_that_comes_back_to_a_topic_begins_to_count_anew() -> None:
    bench = Bench()
    bench.receive("lagging")
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    bench.advance(10_000)
    assert missed_counts(bench.broker)["t", "lagging"] > 0
    bench.broker.group_views.delete("lagging", "", bench.now_ms)
    assert missed_counts(bench.broker) == {}
    bench.receive("lagging")
    bench.flush()
    bench.reopen(KEEP_ONE)
    assert bench.broker.group_views.view_group("lagging").missed == ()


def test_a_segment_waits_for_two_snapshots_that_cover_it() -> None:
    bench = Bench()
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    bench.advance(10_000)
    (segment,) = bench.segments()
    older, newer = sorted(map(int, bench.disk.list("snapshots")))
    assert int(segment) <= older < newer
    bench.disk.flip_bit(f"snapshots/{newer:020d}", 400)
    bench.reopen(KEEP_ONE)
    assert not bench.broker.damaged
    assert bench.broker.topics.get("t").queue_count == 4


def test_a_nearly_full_disk_refuses_messages_but_not_their_ends() -> None:
    bench = Bench()
    half = bench.send(transactional=True, check_immunity_ms=3_600_000)
    delayed = bench.send(delivery_ms=bench.now_ms + 3_000)
    bench.send()
    (got,) = bench.receive()
    used = sum(bench.disk.size(f"commitlog/{name}") for name in bench.segments())
    bench.disk.total_bytes = used
    bench.advance(1_000)
    assert bench.broker.gauges().is_full
    for attributes in ({}, {"transactional": True}, {"delivery_ms": NOW_MS}):
        with pytest.raises(DiskFull, match="Receiving and acknowledging go on"):
            bench.send(**attributes)
    bench.broker.receiving.ack("g", "t", got.receipt_handle, bench.now_ms)
    bench.broker.transactions.end("t", half.transaction_id, half.message_id, Resolution.COMMIT, bench.now_ms)
    bench.advance(3_000)
    assert {one.message.message_id for one in bench.receive()} == {half.message_id, delayed.message_id}
    bench.disk.total_bytes = 1 << 40
    bench.advance(1_000)
    assert bench.send().message_id


def test_without_a_retention_nothing_is_deleted_however_full_the_disk_is() -> None:
    bench = Bench()
    for _ in range(40):
        bench.send()
    before = bench.segments()
    bench.disk.total_bytes = sum(bench.disk.size(f"commitlog/{name}") for name in before) + SEGMENT_BYTES
    bench.advance(60_000)
    assert bench.broker.gauges().disk_used > retention.DISK_USED_FORCED
    assert bench.segments() == before


def test_the_reserve_makes_room_for_a_segment_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    assert bench.disk.size(layout.RESERVE) == SEGMENT_BYTES

    allocate = bench.disk.allocate

    def no_room(path: str, length: int) -> None:
        if path == layout.RESERVE or bench.disk.size(layout.RESERVE) >= 0:
            raise OSError(28, "No space left on device", path)
        allocate(path, length)

    monkeypatch.setattr(bench.disk, "allocate", no_room)
    for _ in range(100):
        bench.send()
        if bench.broker.gauges().is_full:
            break
    with pytest.raises(DiskFull):
        bench.send()
    assert len(bench.segments()) == 1
    assert bench.disk.size(layout.RESERVE) == -1
    assert len(bench.receive()) == min(bench.count - 1, 32)
    monkeypatch.undo()
    bench.advance(1_000)
    assert bench.send().message_id


AGES = [SegmentAge(number * 100, 1_000 * number) for number in range(5)]


@pytest.mark.parametrize(
    ("policy", "disk_used", "pinned", "cut"),
    [
        (RetentionPolicy(), 0.1, None, 0),
        (RetentionPolicy(age_ms=7_500), 0.1, None, 300),
        (RetentionPolicy(age_ms=0), 0.1, None, 400),
        (RetentionPolicy(age_ms=0), 0.1, 150, 100),
        (RetentionPolicy(log_bytes_max=200), 0.1, None, 300),
        (RetentionPolicy(), 0.99, None, 0),
        (RetentionPolicy(age_ms=1_000_000), 0.7, None, 0),
        (RetentionPolicy(age_ms=1_000_000), 0.8, None, 100),
        (RetentionPolicy(age_ms=1_000_000), 0.8, 50, 0),
        (RetentionPolicy(age_ms=1_000_000), 0.86, 50, 100),
    ],
)
def test_which_segments_may_go(
    policy: RetentionPolicy, disk_used: float, pinned: int | None, cut: int
) -> None:
    assert retention.cut_offset(AGES, 100, policy, disk_used, pinned, 10_000) == cut


def test_nothing_is_deleted_while_a_checkpoint_is_under_way() -> None:
    """Its snapshots may cover on disk what the core still reads from the log: here a timer set since."""
    bench = Bench()
    bench.send(delivery_ms=bench.now_ms + 600_000)
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    for number in range(2):
        checkpoint = bench.broker.checkpoint(bench.now_ms)
        checkpoint.write(bench.disk)
        if number == 0:
            bench.broker.complete_checkpoint(checkpoint)
            bench.broker.sending.send(Message(topic="t", body=b"x", message_id="last"), bench.now_ms)
            while flush := bench.broker.take_flush():
                flush.write()
                bench.broker.complete_flush(flush, bench.now_ms)
    count = len(bench.segments())
    for second in range(1, 4):
        effects = bench.broker.tick(bench.now_ms + second * 1_000)
        assert not [one for one in effects if isinstance(one, RetireSegments)]
    bench.broker.complete_checkpoint(checkpoint)
    bench.advance(10_000)
    assert len(bench.segments()) < count


@pytest.mark.parametrize("settings", [KEEP_ALL, KEEP_ONE], ids=["kept for ever", "cut already"])
def test_groups_are_not_looked_at_where_no_segment_may_go(settings: BrokerSettings) -> None:
    bench = Bench()
    bench.receive("lagging")
    for _ in range(40):
        bench.send()
    bench.reopen(settings)
    bench.advance(20_000)
    with patch.object(bench.broker.groups, "committed_offsets", side_effect=AssertionError("it looked")):
        bench.advance(20_000)


def kept_on_disk(bench: Bench) -> None:
    """Write all that queues have in memory to their files, and a snapshot that names these."""
    bench.broker.store.dispatch.write()
    checkpoint = bench.broker.checkpoint(bench.now_ms)
    checkpoint.write(bench.disk)
    bench.broker.complete_checkpoint(checkpoint)


def test_housekeeping_goes_on_where_the_file_of_a_queue_that_a_group_waits_in_is_damaged() -> None:
    """What a tick raises ends the process: a start does not look at the files any more, a tick does."""
    bench = Bench(tail_entries_max=1)
    bench.receive("lagging")
    for _ in range(100):
        bench.send()
    kept_on_disk(bench)
    bench.disk.flip_bit(f"consumequeue/t/0/{0:020}", 30 * 8)
    six = RetentionPolicy(log_bytes_max=6 * SEGMENT_BYTES, group_pin_ms=3_600_000)
    bench.reopen(replace(KEEP_ALL, tail_entries_max=1, retention=six))
    bench.advance(10_000)
    assert [one.part for one in bench.broker.damage] == ["queue"]


class Asked(MemoryDisk):
    """A disk that knows which files of queues were read, and one whose file cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_paths: set[str] = set()
        self.unreadable = "none"

    def read(self, path: str, position: int, length: int) -> bytes:
        if path.startswith("consumequeue/"):
            self.read_paths.add(path)
            if path.startswith(self.unreadable):
                raise OSError(EIO, "Input/output error", path)
        return super().read(path, position, length)


def cut_with_files() -> tuple[Bench, Asked]:
    """Return a bench whose log is cut, with all entries of its queues in files, and a snapshot then."""
    bench, disk = Bench(), Asked()
    bench.disk, six = disk, RetentionPolicy(log_bytes_max=6 * SEGMENT_BYTES, group_pin_ms=0)
    bench.reopen(replace(KEEP_ALL, tail_entries_max=1, retention=six))
    for number in range(400):
        bench.send(topic=f"t{number % 10}")
    bench.broker.store.dispatch.write()
    bench.advance(10_000)
    assert bench.broker.gauges().log_first_offset > 0
    bench.send(topic="other")
    kept_on_disk(bench)
    return bench, disk


def test_a_start_behind_a_cut_opens_no_file_of_a_queue() -> None:
    bench, disk = cut_with_files()
    disk.read_paths.clear()
    bench.reopen(bench.settings)
    assert len(disk.read_paths) == 0


def test_a_start_behind_a_cut_works_where_the_file_of_a_queue_cannot_be_read() -> None:
    """A bad sector in a file that can be made anew: else no start works until somebody deletes it."""
    bench, disk = cut_with_files()
    disk.unreadable = "consumequeue/t0/"
    bench.reopen(bench.settings)
    assert bench.broker.gauges().log_first_offset > 0


def test_one_tick_does_not_read_the_files_of_all_queues_that_a_group_lags_in() -> None:
    """With 80,000 queues that holds the loop for some 10 s; a cut looks at some queues at a time."""
    bench, disk = Bench(tail_entries_max=1), Asked()
    bench.disk = disk
    bench.reopen(bench.settings)
    for number in range(200):
        bench.send(topic=f"t{number % 10}")
    for number in range(10):
        bench.broker.receiving.receive("g", f"t{number}", EVERYTHING, 1, 20_000, "c", False, bench.now_ms)
    bench.flush()
    kept_on_disk(bench)
    six = RetentionPolicy(log_bytes_max=6 * SEGMENT_BYTES, group_pin_ms=3_600_000)
    bench.reopen(replace(KEEP_ALL, tail_entries_max=1, cut_queues_max=5, retention=six))
    disk.read_paths.clear()
    bench.broker.tick(bench.now_ms + 1_000)
    assert len(disk.read_paths) <= 5


def test_a_tick_works_where_the_file_of_a_queue_that_a_group_lags_in_cannot_be_read() -> None:
    """What a tick raises lets the core go: then nothing is served at all, for a file made anew at need."""
    bench, disk = Bench(tail_entries_max=1), Asked()
    bench.disk = disk
    bench.reopen(bench.settings)
    bench.receive("lagging")
    for _ in range(100):
        bench.send()
    kept_on_disk(bench)
    six = RetentionPolicy(log_bytes_max=6 * SEGMENT_BYTES, group_pin_ms=3_600_000)
    bench.reopen(replace(KEEP_ALL, tail_entries_max=1, retention=six))
    disk.unreadable = "consumequeue/t/1/"
    bench.advance(10_000)
    bench.send()


def test_a_crash_behind_a_cut_has_no_queue_made_anew_where_there_are_lite_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cut has deleted files that the snapshot names; its record is read after files are compared."""
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", 4 * ENTRY_BYTES)
    bench = Bench(tail_entries_max=1)
    bench.broker.topics.create("lite", MessageType.LITE, 1, bench.now_ms)
    for number in range(120):
        bench.send(topic="lite", lite_topic=f"l{number % 3}")
        bench.broker.store.dispatch.write()
    three = RetentionPolicy(log_bytes_max=3 * SEGMENT_BYTES, group_pin_ms=0)
    bench.reopen(replace(bench.settings, retention=three))
    bench.advance(10_000)
    assert f"{0:020}" not in bench.disk.list("consumequeue/lite/0")
    bench.reopen(bench.settings)
    assert bench.broker.rebuilt_files == []
    assert [*bench.broker.damage] == []
    (name, *_) = bench.disk.list("consumequeue/lite/0")
    kept_on_disk(bench)
    bench.disk.flip_bit(f"consumequeue/lite/0/{name}", 9)
    bench.reopen(bench.settings)
    assert bench.broker.rebuilt_files != []


def test_a_snapshot_names_no_file_of_a_queue_that_was_made_anew_and_has_none_yet() -> None:
    """A copy for another node, which cannot find such a file, was sent without all files of queues."""
    bench = Bench()
    six = RetentionPolicy(log_bytes_max=6 * SEGMENT_BYTES, group_pin_ms=0)
    bench.reopen(replace(bench.settings, retention=six))
    for _ in range(200):
        bench.send()
    bench.advance(10_000)
    kept_on_disk(bench)
    bench.disk.delete(layout.QUEUES_WHOLE)
    bench.reopen(bench.settings)
    assert bench.broker.rebuilt_files != []
    assert any(queue.min_offset for _, _, queue in bench.broker.store.dispatch.queues())
    bench.send()
    kept_on_disk(bench)
    start = snapshot.newest(bench.disk)
    assert start is not None
    named = [path for path, _, _ in files_named(start.parts[QUEUES])]
    assert [path for path in named if bench.disk.size(path) < 0] == []
    bench.reopen(replace(bench.settings, tail_entries_max=1))  # now they get their files
    for _ in range(16):
        bench.send()
    kept_on_disk(bench)
    assert bench.disk.list("consumequeue/t")
    bench.reopen(bench.settings)
    assert bench.broker.rebuilt_files == []
    assert all(queue.is_sound() for _, _, queue in bench.broker.store.dispatch.queues())


def test_a_start_makes_the_queues_anew_where_their_mark_cannot_be_read() -> None:
    """A bad sector in a file of ten bytes: else no start works until somebody deletes it."""
    bench, disk = Bench(tail_entries_max=1), Unmarked()
    bench.disk = disk
    bench.reopen(bench.settings)
    bench.send()
    kept_on_disk(bench)
    disk.is_unreadable = True
    bench.reopen(bench.settings)
    assert bench.broker.rebuilt_files != []
    assert [one.message.message_id for one in bench.receive()] == ["M1"]


class Unmarked(MemoryDisk):
    """A disk that cannot read the mark of the files of queues."""

    is_unreadable = False

    def read(self, path: str, position: int, length: int) -> bytes:
        if self.is_unreadable and path == layout.QUEUES_WHOLE:
            raise OSError(EIO, "Input/output error", path)
        return super().read(path, position, length)


class Unlinking(MemoryDisk):
    """A disk that notes which files of queues are deleted, and keeps some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []
        self.refuses = False

    def delete(self, path: str) -> None:
        if path.startswith(f"{layout.CONSUMEQUEUE}/"):
            if self.refuses:
                raise OSError(EIO, "Input/output error", path)
            self.deleted.append(path)
        super().delete(path)


def with_queue_files_to_delete() -> tuple[Bench, Unlinking, Deletion]:
    """Return a broker whose cut has left files of its queues without entries, and the deletion it wants."""
    bench, disk = Bench(tail_entries_max=1), Unlinking()
    bench.disk = disk
    bench.broker = Broker.open(disk, bench.settings, bench.now_ms)
    for _ in range(100):
        bench.send()
    bench.broker.store.dispatch.write()
    bench.deletions = []
    bench.reopen(replace(KEEP_ONE, tail_entries_max=1))
    bench.advance(10_000)
    (deletion,) = bench.deletions
    bench.deletions = None
    return bench, disk, deletion


def queue_files(disk: MemoryDisk) -> list[str]:
    folder = f"{layout.CONSUMEQUEUE}/t"
    return [f"{folder}/{one}/{name}" for one in disk.list(folder) for name in disk.list(f"{folder}/{one}")]


@pytest.fixture
def _four_entries_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "_FILE_BYTES", 4 * ENTRY_BYTES)


@pytest.mark.usefixtures("_four_entries_a_file")
def test_files_of_queues_are_deleted_with_the_segments_by_a_worker() -> None:
    """The unlink of each syncs its folder: hundreds in one turn of the loop held all other calls."""
    bench, disk, deletion = with_queue_files_to_delete()
    before, segments = queue_files(disk), bench.segments()
    assert disk.deleted == [], "nothing of it in the loop"
    deletion.run(disk)
    assert len(disk.deleted) > 8
    assert {*queue_files(disk)} == {*before} - {*disk.deleted}
    assert len(bench.segments()) < len(segments)
    deleted = [*disk.deleted]
    assert bench.broker.continue_retirement(deletion, bench.now_ms)
    assert disk.deleted == deleted
    assert not bench.broker.store.dispatch.has_deletable_files
    ranges = [bench.broker.finding.queue_range("t", queue_id) for queue_id in range(4)]
    bench.reopen(bench.settings)
    assert [bench.broker.finding.queue_range("t", queue_id) for queue_id in range(4)] == ranges
    assert [*bench.broker.damage] == []


@pytest.mark.usefixtures("_four_entries_a_file")
def test_files_of_queues_that_a_worker_deletes_are_neither_read_nor_damaged_meanwhile() -> None:
    bench, disk, deletion = with_queue_files_to_delete()
    deletion.run(disk)  # which the loop has not learned yet
    for _, queue_id, queue in bench.broker.store.dispatch.queues():
        if queue.key[0] == "t":
            for offset in range(queue.end_offset):
                found = queue.get(offset, 9)
                assert found or offset < queue.min_offset, (queue_id, offset)
    assert bench.receive() != []
    bench.broker.request_checkpoint()
    bench.send()
    assert bench.broker.continue_retirement(deletion, bench.now_ms)
    bench.reopen(bench.settings)
    assert [*bench.broker.damage] == []
    assert bench.broker.rebuilt_files == []


@pytest.mark.usefixtures("_four_entries_a_file")
@pytest.mark.parametrize("fails", ["the disk", "the worker", "the process"])
def test_files_of_queues_that_could_not_be_deleted_go_with_a_later_deletion(fails: str) -> None:
    bench, disk, deletion = with_queue_files_to_delete()
    wanted = {*deletion.derived_paths}
    assert wanted <= {*queue_files(disk)}
    match fails:
        case "the disk":
            disk.refuses = True
            deletion.run(disk)
            assert bench.broker.continue_retirement(deletion, bench.now_ms)
            disk.refuses = False
        case "the worker":
            bench.broker.abandon_retirement()
        case _:
            bench.reopen(bench.settings)
    for _ in range(100):
        bench.send()
    bench.advance(20_000)
    assert not wanted & {*queue_files(disk)}
    assert not bench.broker.store.dispatch.has_deletable_files
    assert [*bench.broker.damage] == []
