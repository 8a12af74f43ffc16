"""A message that its sender repeats is stored once; one whose id another has is stored all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commitlog import limits
from commitlog.limits import SAME_ID_READ_MAX
from commitlog.log.log import CommitLog
from commitlog.log.recovery import LogScan
from commitlog.records.message import Message, MessageType
from commitlog.records.record import encode
from consumequeue.indexes.keyindex import KeyIndex
from consumequeue.runs.sorted_runs import BLOCK_BYTES
from services.broker.broker import Broker
from services.broker.deduplication import PERIOD_MS, PERIODS_KEPT, WINDOW_MS, Deduplicator
from services.broker.spine.settings import BrokerSettings
from services.broker.timers.delays import with_absolute_times
from services.cluster.errors import EngineTrouble
from tests.memory_disk import MemoryDisk
from tidewheel.errors import TidewheelError

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=1 << 16, queue_count=1)
PLAIN = Message(
    topic="t",
    body=b"x",
    message_id="M1",
    keys=("k", "order 7"),
    tag="a",
    properties={"p": "v", "q": "w", "r": "x"},
)
KINDS = {
    "plain": PLAIN,
    "FIFO": replace(PLAIN, message_group="line"),
    "priority": replace(PLAIN, topic="jobs", priority=2),
    "lite": replace(PLAIN, topic="lite", lite_topic="one"),
    "compressed": replace(PLAIN, gzip=True),
    "carries a verb": replace(PLAIN, properties={"TW_TIMER_CANCEL": "none", "p": "v"}),
    "delayed": replace(PLAIN, delivery_ms=NOW_MS + 60_000),
    "half": replace(PLAIN, transactional=True),
}
ANOTHER: dict[str, dict[str, Any]] = {
    "body": {"body": b"y"},
    "tag": {"tag": "b"},
    "keys": {"keys": ("k",)},
    "no tag": {"tag": ""},
    "no keys": {"keys": ()},
    "property": {"properties": {"p": "w", "q": "w", "r": "x"}},
    "one property less": {"properties": {"p": "v", "r": "x"}},
    "one property more": {"properties": {"p": "v", "q": "w", "r": "x", "s": "y"}},
}


class NoFold:
    """The part of a shared log, without one."""

    def freeze(self) -> None:
        """Keep nothing."""

    def thaw(self, frozen: None) -> None:
        """Take nothing over."""


class Bench:
    """A broker, whose clients may repeat themselves."""

    def __init__(self) -> None:
        self.disk, self.now_ms = MemoryDisk(), NOW_MS
        self.open()
        self.broker.topics.create("jobs", MessageType.PRIORITY, 4, NOW_MS)
        self.broker.topics.create("lite", MessageType.LITE, 1, NOW_MS)
        self.now_ms += PERIODS_KEPT * PERIOD_MS  # from now on only what came is looked up

    def open(self) -> None:
        self.broker = Broker.open(self.disk, SETTINGS, self.now_ms)

    def take_over(self) -> None:
        """Recover the store as a node of a cluster does, and lead."""
        self.broker = Broker.recover(self.disk, SETTINGS, self.now_ms, shared=NoFold())
        self.broker.begin(self.now_ms, leases_until_ms=self.now_ms)

    def send(self, message: Message) -> int:
        """Send it; return where it lies in the log."""
        return self.broker.sending.send(message, self.now_ms).physical_offset

    def checkpoint(self) -> None:
        done = self.broker.checkpoint(self.now_ms)
        done.write(self.disk)
        self.broker.complete_checkpoint(done)

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("befalls", ["nothing", "a flush", "a start", "a checkpoint and a start"])
def test_a_repeat_gets_the_first_receipt(bench: Bench, kind: str, befalls: str) -> None:
    first = bench.broker.sending.send(KINDS[kind], bench.now_ms)
    if befalls != "nothing":
        bench.flush()
    if "checkpoint" in befalls:
        bench.checkpoint()
    bench.now_ms += WINDOW_MS - 1
    if "start" in befalls:
        bench.open()
    before = bench.broker.end_offset
    # Clients write the time of each try, and protobuf the properties in any order.
    turned = dict(reversed(KINDS[kind].properties.items()))
    again = replace(KINDS[kind], born_ms=5, properties=turned)
    assert bench.broker.sending.send(again, bench.now_ms) == first
    assert bench.broker.end_offset == before
    assert bench.broker.statistics.colliding_ids == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", ANOTHER)
@pytest.mark.parametrize("is_flushed", [False, True])
def test_two_messages_of_one_id_are_both_stored_and_both_known(
    bench: Bench, kind: str, other: str, is_flushed: bool
) -> None:
    if kind == "carries a verb" and "property" in other:
        pytest.skip("its property is the verb")
    one, two = KINDS[kind], replace(KINDS[kind], **ANOTHER[other])
    offsets = []
    for message in (one, two):
        offsets.append(bench.send(message))
        if is_flushed:
            bench.flush()
    assert offsets[0] != offsets[1]
    assert bench.broker.statistics.colliding_ids == 1
    assert [bench.send(one), bench.send(two)] == offsets


def stopped(bench: Bench, _: pytest.MonkeyPatch) -> None:
    bench.broker.housekeeping.stopped = EngineTrouble("Kafka has lost its quorum.")


def full(bench: Bench, _: pytest.MonkeyPatch) -> None:
    bench.broker.housekeeping.disk_used = 0.95


def crowded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let as many wait, and as many topics be, as may: all that there are."""
    monkeypatch.setattr(limits, "HALVES_WAITING_MAX", 0)
    monkeypatch.setattr(limits, "TOPICS_MAX", 0)
    for part in (bench.broker.timers, bench.broker.lite_topics):
        monkeypatch.setattr(part, "_settings", replace(SETTINGS, timers_per_topic_max=0, lite_topics_max=0))


def behind(bench: Bench, _: pytest.MonkeyPatch) -> None:
    """Let the next leader's clock be behind, so that a delayed message is due too late."""
    bench.now_ms -= limits.DELAY_MS_MAX


REFUSALS = {one.__name__: one for one in (stopped, full, crowded, behind)}
ANOTHER_ID, ANOTHER_TOPIC = {"message_id": "M2"}, {"topic": "made by no refusal"}
REFUSED: dict[str, dict[str, list[dict[str, Any]]]] = {
    "stopped": {kind: [{"body": b"y"}, ANOTHER_ID, ANOTHER_TOPIC] for kind in KINDS},
    "full": {kind: [{"body": b"y"}, ANOTHER_ID, ANOTHER_TOPIC] for kind in KINDS},
    "crowded": {
        **{kind: [ANOTHER_TOPIC] for kind in KINDS},
        "delayed": [ANOTHER_ID],
        "half": [ANOTHER_ID],
        "lite": [{"lite_topic": "two"}],
    },
    "behind": {"delayed": [ANOTHER_ID]},
}
"""What is refused then, though a message that differs by this was stored, by kind of message."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("refuse", REFUSALS)
@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_repeat_is_not_refused_and_what_is_refused_was_never_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, refuse: str, is_flushed: bool
) -> None:
    first = bench.broker.sending.send(KINDS[kind], bench.now_ms)
    if is_flushed:
        bench.flush()
    REFUSALS[refuse](bench, monkeypatch)
    assert bench.broker.sending.send(KINDS[kind], bench.now_ms) == first
    before = bench.broker.end_offset
    for other in REFUSED[refuse].get(kind, []):
        with pytest.raises(TidewheelError):
            bench.send(replace(KINDS[kind], **other))
        assert bench.broker.end_offset == before


def test_a_repeat_is_told_its_receipt_though_its_topic_takes_its_type_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.send(PLAIN)
    monkeypatch.setitem(bench.broker.topics._topics, "t", bench.broker.topics.get("jobs"))
    assert bench.send(PLAIN) == first
    with pytest.raises(TidewheelError):
        bench.send(replace(PLAIN, message_id="M2"))


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {"TW_TIMER_MOVE": "none", "TW_TIMER_TO": "2h", "p": "v"},
        {"p": "v", "TIMER_DELAY_SEC": "60"},
        {"traceparent": "00-{}-1-01", "tracestate": "t={}", "p": "v"},
    ],
    ids=["a span", "a delay", "a trace"],
)
def test_what_every_try_says_anew_makes_no_other_message(
    bench: Bench, given: dict[str, str], is_half: bool
) -> None:
    offsets = []
    for number in range(3):
        said = {name: value.format(number) for name, value in given.items()}
        message = replace(PLAIN, properties=said, transactional=is_half, trace_context=f"span {number}")
        offsets.append(bench.send(with_absolute_times(message, bench.now_ms)))
        bench.flush()
        bench.now_ms += 3_000
    assert len(set(offsets)) == 1
    another = replace(message, properties=said | {"p": "w"})
    assert bench.send(with_absolute_times(another, bench.now_ms)) != offsets[0]


def test_a_message_is_another_topics_or_kinds(bench: Bench) -> None:
    offsets = {bench.send(one) for one in (PLAIN, replace(PLAIN, topic="u"), KINDS["half"], KINDS["delayed"])}
    assert len(offsets) == 4


def test_a_key_that_is_another_messages_id_is_no_id(bench: Bench) -> None:
    bench.send(replace(PLAIN, message_id="M2", keys=("M1",)))
    bench.flush()
    bench.send(PLAIN)
    assert bench.broker.statistics.colliding_ids == 0


def test_what_comes_again_much_later_is_stored_again(bench: Bench) -> None:
    first = bench.send(PLAIN)
    bench.flush()
    for number in range(PERIODS_KEPT):
        bench.now_ms += PERIOD_MS
        bench.send(replace(PLAIN, message_id=f"other-{number}"))
        bench.flush()
    assert bench.send(PLAIN) != first


def test_a_repeat_gets_the_first_receipt_although_the_clock_stepped(bench: Bench) -> None:
    for step_ms in (60_000, 3_600_000):
        first = bench.send(replace(PLAIN, message_id=f"before {step_ms}"))
        bench.flush()
        bench.now_ms += step_ms
        assert bench.send(replace(PLAIN, message_id=f"before {step_ms}")) == first


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeat_gets_the_first_receipt_of_a_leader_whose_clock_was_behind(bench: Bench, kind: str) -> None:
    first = bench.broker.sending.send(KINDS[kind], bench.now_ms)
    bench.flush()
    bench.now_ms += 2 * limits.DEDUPE_MS
    bench.take_over()
    bench.now_ms += WINDOW_MS - 1
    assert bench.broker.sending.send(KINDS[kind], bench.now_ms) == first


@pytest.mark.parametrize("kind", ["delayed", "half"])
def test_an_id_that_comes_again_long_after_a_takeover_is_another_messages(bench: Bench, kind: str) -> None:
    first = bench.send(KINDS[kind])
    bench.flush()
    bench.take_over()
    bench.now_ms += limits.DEDUPE_MS
    assert bench.send(KINDS[kind]) != first


@pytest.fixture
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.broker.spine.recent_ids.BUCKET_BITS_MIN", 0)
    monkeypatch.setattr("services.broker.spine.recent_ids.BUCKET_BITS_MAX", 0)


def test_ids_of_one_bucket_are_told_apart(one_bucket: None, bench: Bench) -> None:
    offsets = {bench.send(replace(PLAIN, message_id=f"M{number}")) for number in range(300)}
    bench.flush()
    assert len(offsets) == 300
    assert {bench.send(replace(PLAIN, message_id=f"M{number}")) for number in range(300)} == offsets


def test_turns_go_round(bench: Bench) -> None:
    for number in range(600):
        message = replace(PLAIN, message_id=f"M{number}")
        first = bench.send(message)
        bench.now_ms += WINDOW_MS
        assert bench.send(message) == first
        bench.flush()


@pytest.mark.parametrize("pause_ms", [None, 10 * WINDOW_MS], ids=["fresh", "long after"])
def test_a_start_behind_nothing_young_looks_no_id_up(
    pause_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    if pause_ms is not None:
        bench.send(PLAIN)
        bench.flush()
        bench.now_ms += pause_ms
    bench.disk = bench.disk if pause_ms is not None else MemoryDisk()
    bench.open()
    monkeypatch.setattr(Deduplicator, "find_first", lambda *_: pytest.fail("an id was looked up"))
    for number in range(10):
        bench.send(replace(PLAIN, message_id=f"N{number}"))


def forbid_look_ups(patch: pytest.MonkeyPatch) -> None:
    """Let a look into the log or the key index fail."""
    for owner, name in ((KeyIndex, "offsets"), (CommitLog, "read"), (CommitLog, "appended")):
        patch.setattr(owner, name, lambda *_: pytest.fail("an id was looked up"))


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_start_under_load_looks_up_no_id_that_did_not_come(
    bench: Bench, has_checkpoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = {f"M{number}": bench.send(replace(PLAIN, message_id=f"M{number}")) for number in range(500)}
    bench.flush()
    if has_checkpoint:
        bench.checkpoint()
    bench.now_ms += WINDOW_MS - 2
    bench.open()
    with monkeypatch.context() as patch:
        forbid_look_ups(patch)
        for number in range(500):
            bench.send(replace(PLAIN, message_id=f"N{number}"))
    bench.now_ms += 1
    assert {one: bench.send(replace(PLAIN, message_id=one)) for one in offsets} == offsets


def test_a_follower_takes_over_warm_by_its_own_clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    follower_disk, follower_ms = MemoryDisk(), bench.now_ms + 3_600_000
    follower = Broker.recover(follower_disk, SETTINGS, follower_ms, shared=NoFold())
    taken, receipts = 0, {}

    def follow() -> None:
        nonlocal taken
        bench.flush()
        scan = LogScan(bench.disk, bench.broker.segment_bytes, taken, stop_at=bench.broker.durable_offset)
        encoded = [encode(one.record) for one in scan]
        taken = bench.broker.durable_offset
        follower.append_replicated(encoded, taken, follower_ms)

    old = bench.send(replace(PLAIN, message_id="old"))
    follow()
    for number in range(PERIODS_KEPT + 1):
        follower_ms, bench.now_ms = follower_ms + PERIOD_MS, bench.now_ms + PERIOD_MS
        bench.send(replace(PLAIN, message_id=f"turn-{number}"))
        follow()
    for name, kind in KINDS.items():
        one = replace(kind, message_id=name)
        receipts[name] = one, bench.broker.sending.send(one, bench.now_ms)
    follow()
    bench.broker, bench.disk, bench.now_ms = follower, follower_disk, follower_ms + WINDOW_MS - 1
    follower.begin(bench.now_ms, leases_until_ms=bench.now_ms)
    with monkeypatch.context() as patch:
        forbid_look_ups(patch)
        for number in range(100):
            bench.send(replace(PLAIN, message_id=f"N{number}"))
    for one, receipt in receipts.values():
        assert follower.sending.send(one, bench.now_ms) == receipt
    assert bench.send(replace(PLAIN, message_id="old")) != old


def test_a_table_that_cannot_be_filled_says_so_and_looks_up_until_the_window_has_passed(bench: Bench) -> None:
    offsets = {f"M{number}": bench.send(replace(PLAIN, message_id=f"M{number}")) for number in range(500)}
    bench.flush()
    bench.checkpoint()
    (run,) = bench.broker.store.keys.runs
    bench.disk.flip_bit(run.path, 8 * 2 * BLOCK_BYTES + 5)
    bench.open()
    assert [one.part for one in bench.broker.store.damage] == ["index"]
    known = {one: bench.send(replace(PLAIN, message_id=one)) for one in offsets}
    assert len(set(known.values()) & set(offsets.values())) > 200
    bench.send(replace(PLAIN, message_id="of the first turn"))
    for number in range(PERIODS_KEPT):
        assert bench.broker.sending.deduplicator.ids.is_incomplete
        bench.now_ms += PERIOD_MS
        bench.flush()
        bench.send(replace(PLAIN, message_id=f"turn-{number}"))
    assert not bench.broker.sending.deduplicator.ids.is_incomplete
    assert {one: bench.send(replace(PLAIN, message_id=one)) for one in known} != offsets


def test_of_many_messages_of_one_id_a_bounded_number_is_read(bench: Bench) -> None:
    offsets = [bench.send(replace(PLAIN, body=b"%d" % number)) for number in range(SAME_ID_READ_MAX + 2)]
    assert bench.send(replace(PLAIN, body=b"2")) == offsets[2]
    assert bench.send(replace(PLAIN, body=b"1")) not in offsets


def test_a_turn_ends_though_the_clock_was_set_back(bench: Bench) -> None:
    bench.send(PLAIN)
    bench.flush()
    bench.broker.tick(bench.now_ms)
    bench.now_ms -= 3_600_000
    bench.broker.tick(bench.now_ms)
    first = bench.send(replace(PLAIN, message_id="M2"))
    bench.flush()
    for number in range(PERIODS_KEPT + 1):
        bench.now_ms += PERIOD_MS
        bench.send(replace(PLAIN, message_id=f"other-{number}"))
        bench.flush()
    assert bench.send(replace(PLAIN, message_id="M2")) != first
