"""What a node reads out of the shared log's bodies, and where a start of it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from commitlog import layout, limits
from commitlog.errors import StoreDamaged
from commitlog.records.message import Message
from commitlog.snapshots import snapshot
from consumequeue.entry import ENTRY_BYTES
from consumequeue.filters.filter import parse_tags
from consumequeue.queue import stored_queues
from services.broker import derived
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import DamagedPart
from services.cluster import replica
from services.cluster.replica import LEASE_MS_MIN, Replica, reset_to_checkpoint
from sharedlog.bodies import split_records
from sharedlog.engine import Head
from sharedlog.errors import LogDamaged
from sharedlog.fold import Position
from sharedlog.leading import Candidate
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, decode, encode, extend_chain
from tests.genesis import genesis_of
from tests.memory_disk import MemoryDisk
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
SETTINGS = BrokerSettings(segment_bytes=4096, queue_count=1)


class Recorder:
    """A sink that keeps what came."""

    appends_max = 1

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def append(self, first_offset: int, parts: object, epoch: int) -> None:
        self.bodies.append(b"".join(one for one in parts if isinstance(one, bytes | bytearray)))  # type: ignore


def test_the_blanks_that_close_segments_are_no_records() -> None:
    core, recorder = Broker.open(MemoryDisk(), SETTINGS, 0), Recorder()
    core.write_to(recorder)
    for number in range(12):
        core.sending.send(Message(topic="t", body=b"x" * 900, message_id=f"M{number}"), 0)
    while (flush := core.take_flush()) is not None:
        flush.write()
        core.complete_flush(flush, 0)
    assert core.end_offset > 2 * SETTINGS.segment_bytes
    found = [one for body in recorder.bodies for one in split_records(body)]
    follower = Broker.recover(MemoryDisk(), SETTINGS, 0)
    follower.append_replicated(found, core.end_offset, 0)
    assert follower.finding.queue_range("t", 0) == (0, 12)


def test_the_tails_of_a_node_that_follows_are_bounded_in_memory_and_in_its_snapshots() -> None:
    count, disk, recorder = 3_000, MemoryDisk(), Recorder()
    settings = replace(SETTINGS, segment_bytes=1 << 20)
    leader, follower = Broker.open(MemoryDisk(), settings, 0), Broker.recover(disk, settings, 0)
    leader.write_to(recorder)
    for number in range(count):
        leader.sending.send(Message(topic="t", body=b"x", message_id=f"M{number}"), 0)
        if number % 500 == 499:
            while (flush := leader.take_flush()) is not None:
                flush.write()
                leader.complete_flush(flush, 0)
            found = [one for body in recorder.bodies for one in split_records(body)]
            recorder.bodies.clear()
            follower.append_replicated(found, leader.end_offset, 0)
            done = follower.checkpoint(0)  # as `Replica.checkpoint`
            done.write(disk)
            follower.complete_checkpoint(done)
    bound = 2 * limits.TAIL_ENTRIES_MAX * ENTRY_BYTES
    newest = snapshot.newest(disk)
    assert newest is not None
    kept = {one.topic: len(one.tail) for one in stored_queues(newest.parts[derived.QUEUES])}
    queue = follower.store.dispatch.queue("t", 0)
    assert (queue.end_offset, queue.tail_bytes <= bound, kept["t"] <= bound) == (count, True, True)


def test_nothing_behind_the_newest_checkpoint_is_believed_at_a_start() -> None:
    disk = MemoryDisk()
    core = Broker.open(disk, replace(SETTINGS, sync_flush=True), 0)
    core.sending.send(Message(topic="t", body=b"x", message_id="M1"), 0)
    while (flush := core.take_flush()) is not None:
        flush.write()
        core.complete_flush(flush, 0)
    assert layout.published(disk).offset > 0
    assert reset_to_checkpoint(disk) == 0, "a checkpoint without the shared log's part is none"
    assert layout.published(disk).offset == 0


def led() -> tuple[MemoryEngine, list[SharedRecord]]:
    """An engine into which a leader has written messages; and its records."""
    engine = MemoryEngine(Random(1), EMPTY_HEAD)
    engine.is_well = True
    engine.create_log(encode(genesis_of(CLUSTER)))
    leader = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
    read_to(leader, engine, 1)
    candidate = Candidate(leader.fold, b"who leads epoch1", {"node": "a"})
    engine.append_if(
        EMPTY_HEAD, [encode(candidate.epoch)], Head(1, candidate.epoch.holder, EMPTY_HEAD.position)
    )
    read_to(leader, engine, 2)
    leader.start_leading(engine, 0, lambda: 0)
    for number in range(5):
        leader.core.sending.send(Message(topic="t", body=b"x" * 900, message_id=f"M{number}"), 0)
        while (flush := leader.core.take_flush()) is not None:
            flush.write()
            leader.core.complete_flush(flush, 0)
    return engine, [decode(one, CLUSTER) for one in engine.records]


def read_to(copy: Replica, engine: MemoryEngine, until: int) -> None:
    for offset in range(copy.fold.next_offset, until):
        copy.apply_next_record(offset, engine.records[offset], 0)


def flipped(body: bytes) -> bytes:
    return body[:500] + bytes([body[500] ^ 4]) + body[501:]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (flipped, "the record at {0} does not match its CRC"),
        (lambda body: bytes(len(body)), "a record at 0 has a length of 0"),
        (lambda body: body[:3], "the last 3 are no record"),
        (lambda body: body + body, "the record at {1} is that of {0}"),
        (lambda body: b"\x7f" + body[1:], "a record at 0 has a length of 21"),
    ],
)
def test_bytes_that_a_leader_spoiled_in_its_memory_halt_a_follower(
    spoil: Callable[[bytes], bytes], said: str
) -> None:
    engine, records = led()
    last = max(number for number, one in enumerate(records) if one.kind == Kind.BYTES)
    follower = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
    read_to(follower, engine, last)
    one, before = records[last], follower.core.end_offset
    body = spoil(one.body)
    chain = extend_chain(follower.fold.chain, one.start, body, one.zeros)
    with pytest.raises(LogDamaged) as raised:
        follower.apply_next_record(last, encode(replace(one, body=body, chain=chain)), 0)
    assert raised.value.record == last
    assert f"Record {last} of the shared log: of bytes {one.start} to" in str(raised.value)
    assert said.format(one.start, one.start + len(one.body)) in str(raised.value)
    assert "the leader of epoch 1 wrote them so" in str(raised.value)
    assert follower.core.end_offset == before, "nothing of it was written"


def test_a_copy_takes_one_checkpoint_for_an_opening_and_one_for_a_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, records = led()
    monkeypatch.setattr(replica, "EXTRA_CHECKPOINT_BYTES", 1)
    follower = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
    assert not Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER).claim_due_checkpoint(), "it is empty"
    read_to(follower, engine, len(records))
    assert follower.claim_due_checkpoint()
    assert not follower.claim_due_checkpoint()
    candidate = Candidate(follower.fold, b"who leads epoch2", {"node": "b"})
    head = Head(1, follower.fold.holder, Position(follower.fold.end, follower.fold.chain))
    engine.append_if(head, [encode(candidate.epoch)], Head(2, candidate.epoch.holder, head.position))
    read_to(follower, engine, len(records) + 1)
    follower.start_leading(engine, 0, lambda: 0)
    assert follower.claim_due_checkpoint()
    assert not follower.claim_due_checkpoint()


def test_leads_lengthen_a_lease_once() -> None:
    engine = MemoryEngine(Random(1), EMPTY_HEAD)
    engine.is_well = True
    engine.create_log(encode(genesis_of(CLUSTER)))
    first = leading(engine, 0)
    first.sending.send(Message(topic="t", body=b"x", message_id="M", message_group="in order"), 0)
    flush_all(first, 0)
    assert ids_received(first, 0) == ["M"]
    leading(engine, 10_000)
    third = leading(engine, 10_000 + LEASE_MS_MIN - 1)
    assert ids_received(third, 10_000 + LEASE_MS_MIN + 1) == ["M"]


def leading(engine: MemoryEngine, now_ms: int) -> Broker:
    """Return the core of an empty copy that reads the log and leads."""
    copy = Replica.open(MemoryDisk(), SETTINGS, now_ms, CLUSTER)
    read_to(copy, engine, len(engine.records))
    fold = copy.fold
    candidate = Candidate(fold, b"who leads epoch%d" % (fold.epoch + 1), {"node": "a"})
    head = Head(fold.epoch, fold.holder, Position(fold.end, fold.chain))
    after = Head(fold.epoch + 1, candidate.epoch.holder, head.position)
    engine.append_if(head, [encode(candidate.epoch)], after)
    read_to(copy, engine, len(engine.records))
    copy.start_leading(engine, now_ms, lambda: now_ms)
    flush_all(copy.core, now_ms)
    return copy.core


def flush_all(core: Broker, now_ms: int) -> None:
    while (flush := core.take_flush()) is not None:
        flush.write()
        core.complete_flush(flush, now_ms)


def ids_received(core: Broker, now_ms: int) -> list[str]:
    """Return what a consumer gets, for 20 s."""
    core.tick(now_ms)
    received = core.receiving.receive(
        "g", "t", parse_tags("*"), 32, 20_000, client_id="c", auto_renew=False, now_ms=now_ms
    )
    flush_all(core, now_ms)
    return [one.message.message_id for one in received.deliveries]


def test_a_copy_deletes_older_files_of_timers_that_its_start_found() -> None:
    """Files were read through, and so older ones released, where a node leads only."""
    engine, records = led()
    disk = MemoryDisk()
    first = Replica.open(disk, SETTINGS, 0, CLUSTER)
    read_to(first, engine, len(records) - 2)
    first.checkpoint(0)
    # As a split leaves one, which only the snapshot before names.
    older = f"{layout.TIMERS}/0-{16_000_000:020}"
    disk.write(older, 0, b"of 1970")
    again = Replica.open(disk, SETTINGS, 0, CLUSTER)
    assert disk.size(older) > 0
    for until in (len(records) - 1, len(records)):
        read_to(again, engine, until)
        again.checkpoint(0)
    assert disk.list(layout.TIMERS) == []


def test_a_copy_that_has_not_read_what_it_has_seen_accepted_takes_no_checkpoint_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, records = led()
    monkeypatch.setattr(replica, "EXTRA_CHECKPOINT_BYTES", 1)
    disk = MemoryDisk()
    read_to(Replica.open(disk, SETTINGS, 0, CLUSTER), engine, len(records))
    again = Replica.open(disk, SETTINGS, 0, CLUSTER)
    read_to(again, engine, len(records) - 1)
    assert again.beyond_checkpoint_bytes > 0
    assert not again.claim_due_checkpoint()
    read_to(again, engine, len(records))
    assert again.claim_due_checkpoint()


@pytest.mark.parametrize("has_read_all", [False, True])
@pytest.mark.parametrize(
    ("part", "lost_count", "is_borne"),
    [
        ("log", 0, False),
        ("keep", 0, False),
        ("snapshot", 0, True),
        ("queue", 0, True),
        ("index", 0, True),
        ("ends", 0, True),
        ("partition", 0, True),
        ("partition", 1, False),
    ],
)
def test_a_copy_is_given_up_only_for_what_nothing_on_its_machine_replaces(
    part: str, lost_count: int, is_borne: bool, has_read_all: bool
) -> None:
    """What is made anew from the log is no reason to fetch another node's copy; what is lost is one."""
    engine, records = led()
    follower = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
    read_to(follower, engine, len(records))
    follower.require_sound(has_read_all=has_read_all)
    follower.core.damage.report(DamagedPart("index", "index/1", "was made anew", rebuilt_count=7))
    follower.require_sound(has_read_all=has_read_all)
    follower.core.damage.report(
        DamagedPart(part, f"{part}/2", "is not what was written", lost_count=lost_count)
    )
    if is_borne:
        follower.require_sound(has_read_all=has_read_all)
    else:
        with pytest.raises(StoreDamaged, match=f"{part}/2: is not what was written"):
            follower.require_sound(has_read_all=has_read_all)


def test_segments_that_are_gone_are_missed_once_all_has_been_read() -> None:
    """Before that the copy does not know how far retention had cut its log."""
    engine, records = led()
    follower = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
    read_to(follower, engine, len(records))
    store = follower.core.store
    store.log.first_offset = store.may_begin_at + SETTINGS.segment_bytes
    follower.require_sound()
    with pytest.raises(StoreDamaged, match="the log begins at 4096, though it was deleted only up to 0"):
        follower.require_sound(has_read_all=True)
