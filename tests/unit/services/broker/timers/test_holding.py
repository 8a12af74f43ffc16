"""Timers of a held topic wait when they are due, and a release delivers each once, at its pace."""

from __future__ import annotations

from random import Random

import pytest

from commitlog import layout
from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Message, MessageType
from services.broker.broker import Broker
from services.broker.spine.errors import HoldConflict, TopicInUse, TopicNotFound
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import (
    PendingTimer,
    Resolution,
    RetireSegments,
    RunTimersJob,
    TimerFilter,
    TimerName,
    TimerVerdict,
    Verdict,
)
from services.broker.timers import holding
from services.broker.timers.holding import HeldTimers, ReleasePaces
from tests.memory_disk import MemoryDisk
from tests.simulation.tables import tables
from tidewheel.errors import ClientMistake, IllegalTopic

NOW_MS = 1_763_700_000_000
HOUR_MS = 3_600_000
SETTINGS = BrokerSettings(segment_bytes=1 << 16, queue_count=2)
SEGMENT = layout.segment_path(0)


class Bench:
    """A broker with topics t and other, whose flushes are explicit."""

    def __init__(self, settings: BrokerSettings = SETTINGS) -> None:
        self.disk, self.now_ms, self.settings = MemoryDisk(), NOW_MS, settings
        self.broker = Broker.open(self.disk, settings, self.now_ms)
        for topic in ("t", "other"):
            self.broker.topics.create(topic, MessageType.MIXED, 2, self.now_ms)

    def set(self, name: str, due_ms: int, topic: str = "t", **attributes: str) -> None:
        message = Message(
            topic=topic, body=b"x", message_id=name, delivery_ms=due_ms, properties=dict(attributes)
        )
        self.broker.sending.send(message, self.now_ms)
        self.flush()

    def flush(self) -> None:
        while flush := self.broker.take_flush():
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def tick(self, by_ms: int = 0) -> None:
        """Let time pass, and do all that is due then."""
        self.now_ms += by_ms
        for _ in range(20):
            for effect in self.broker.tick(self.now_ms):
                if isinstance(effect, RunTimersJob):
                    effect.job.run(self.disk)
                    self.broker.complete_timers_job(effect.job)
                if isinstance(effect, RetireSegments):
                    effect.retirement.run(self.disk)
                    while not self.broker.continue_retirement(effect.retirement, self.now_ms):
                        pass
            self.flush()

    def hold(self) -> None:
        self.broker.topic_changes.hold("t", "why", self.now_ms)
        self.flush()

    def release(self, per_second: int = 0) -> None:
        self.broker.topic_changes.release("t", per_second, self.now_ms)
        self.flush()

    def checkpoint(self) -> None:
        self.flush()
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def reopen(self) -> None:
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)

    def delivered(self, topic: str = "t") -> list[str]:
        """The messages of a topic, in the order of the log."""
        found = []
        for queue_id in range(self.broker.topics.get(topic).queue_count):
            first, end = self.broker.finding.queue_range(topic, queue_id)
            found += self.broker.finding.read(topic, queue_id, first, max(0, end - first))
        found.sort(key=lambda one: one.record.physical_offset)
        return [one.message.message_id for one in found]

    @property
    def held(self) -> int:
        return self.broker.topic_changes.describe_use("t").held_timers


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_due_timer_of_a_held_topic_waits_for_the_release_and_no_other_does(bench: Bench) -> None:
    bench.hold()
    bench.set("m", bench.now_ms + 1_000)
    bench.set("o", bench.now_ms + 1_000, "other")
    bench.tick(2_000)
    assert (bench.delivered(), bench.delivered("other"), bench.held) == ([], ["o"], 1)
    bench.release()
    bench.tick()
    assert (bench.delivered(), bench.held) == (["m"], 0)
    bench.tick(HOUR_MS)
    assert bench.delivered() == ["m"]


@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.parametrize("is_far", [False, True])
def test_held_timers_are_released_by_due_time_after_a_restart(count: int, is_far: bool) -> None:
    bench = Bench()
    due = {f"m{number}": bench.now_ms + 5_000 + Random(number).randrange(1_000) for number in range(count)}
    for name, due_ms in due.items():
        bench.set(name, due_ms + is_far * HOUR_MS)
    if is_far:
        bench.checkpoint()
        bench.reopen()
    bench.hold()
    for _ in range(2):
        bench.tick(4_000 + is_far * HOUR_MS // 2)
    assert (bench.delivered(), bench.held) == ([], count)
    bench.reopen()
    assert bench.held == count
    bench.checkpoint()
    bench.reopen()
    bench.tick()
    assert (bench.delivered(), bench.held) == ([], count)
    bench.release()
    bench.reopen()
    bench.tick()
    delivered = bench.delivered()
    assert [due[name] for name in delivered] == sorted(due.values())
    assert bench.held == bench.broker.timers.pending_count == 0
    counted = tables(bench.broker)
    bench.reopen()
    assert tables(bench.broker) == counted


def test_a_release_goes_on_at_its_pace_after_a_restart_and_may_change_it(bench: Bench) -> None:
    bench.hold()
    for number in range(40):
        bench.set(f"m{number:02}", bench.now_ms + 1_000)
    bench.tick(1_000)
    bench.release(10)
    for _ in range(10):
        bench.tick(100)
    assert 10 <= len(bench.delivered()) <= 11
    bench.checkpoint()
    bench.reopen()
    assert bench.broker.next_due_ms() is not None
    for _ in range(10):
        bench.tick(100)
    assert 20 <= len(bench.delivered()) <= 23
    bench.release(1_000)
    bench.tick(100)
    bench.tick(100)
    assert len(bench.delivered()) == 40
    with pytest.raises(HoldConflict, match="No timers"):
        bench.release()


def test_what_becomes_due_during_a_release_is_on_time(bench: Bench) -> None:
    bench.hold()
    for number in range(10):
        bench.set(f"m{number}", bench.now_ms + 1_000)
    bench.tick(1_000)
    bench.release(1)
    bench.set("late", bench.now_ms + 500)
    bench.tick(500)
    assert "late" in bench.delivered()
    assert len(bench.delivered()) == 2


def test_a_topic_held_again_during_a_release_keeps_the_rest(bench: Bench) -> None:
    bench.hold()
    for number in range(10):
        bench.set(f"m{number}", bench.now_ms + 1_000)
    bench.tick(1_000)
    bench.release(1)
    bench.tick()
    bench.hold()
    bench.tick(HOUR_MS)
    assert (len(bench.delivered()), bench.held) == (1, 9)


def test_a_held_timer_is_cancelled_moved_fired_and_replaced_by_its_names(bench: Bench) -> None:
    bench.hold()
    for name in ("cancelled", "moved", "fired", "stays"):
        bench.set(name, bench.now_ms + 1_000)
    bench.set("old", bench.now_ms + 1_000, TW_TIMER_KEY="k")
    bench.tick(1_000)
    assert bench.held == 5
    timers, now_ms = bench.broker.timers, bench.now_ms
    found = timers.get_timer(TimerName("t", "stays"), now_ms)
    assert isinstance(found, PendingTimer)
    assert (found.is_held, found.due_ms, found.move_reason) == (True, NOW_MS + 1_000, None)
    assert timers.cancel(TimerName("t", "cancelled"), "", now_ms).verdict is Verdict.CANCELLED
    assert timers.move(TimerName("t", "moved"), now_ms + HOUR_MS, now_ms).verdict is Verdict.MOVED
    assert timers.fire(TimerName("t", "fired"), now_ms).verdict is Verdict.FIRED
    bench.set("new", now_ms + HOUR_MS, TW_TIMER_KEY="k")
    assert (bench.held, bench.delivered()) == (1, ["fired"])
    bench.tick(2 * HOUR_MS)
    assert bench.held == 3  # those that were moved or set again are due once more
    bench.release()
    bench.tick()
    assert sorted(bench.delivered()) == ["fired", "moved", "new", "stays"]


def test_a_half_that_commits_with_a_delay_is_held(bench: Bench) -> None:
    half = Message(topic="t", body=b"x", message_id="h", transactional=True, delivery_ms=bench.now_ms + 1_000)
    receipt = bench.broker.sending.send(half, bench.now_ms)
    bench.flush()
    bench.hold()
    bench.tick(5_000)
    bench.broker.transactions.resolve(receipt.transaction_id, Resolution.COMMIT, "", bench.now_ms)
    bench.flush()
    bench.tick()
    assert (bench.delivered(), bench.held) == ([], 1)
    bench.release()
    bench.tick()
    assert bench.delivered() == ["h"]


def test_a_held_timer_outlives_the_history_and_the_segments_of_the_log() -> None:
    policy = RetentionPolicy(log_bytes_max=1 << 15)
    bench = Bench(
        BrokerSettings(
            segment_bytes=1 << 13, queue_count=2, timer_history_ms=HOUR_MS, retention=policy,
            housekeeping_ms=1_000,
        )
    )  # fmt: skip
    bench.hold()
    bench.set("m", bench.now_ms + 1_000, TW_TIMER_KEY="k")
    bench.tick(2_000)
    for number in range(400):
        bench.broker.sending.send(
            Message(topic="other", body=b"x" * 300, message_id=f"o{number}"), bench.now_ms
        )
        if number % 50 == 0:
            bench.checkpoint()
            bench.tick(HOUR_MS)
    bench.checkpoint()
    bench.tick(2_000)
    (timer_offset,) = bench.broker.timers.held.between(0, 1 << 62)
    assert bench.broker.store.log.first_offset > timer_offset
    bench.reopen()
    found = bench.broker.timers.get_timer(TimerName("t", key="k"), bench.now_ms)
    assert isinstance(found, PendingTimer)
    assert found.message is not None
    bench.release()
    bench.tick()
    assert bench.delivered() == ["m"]
    told = bench.broker.timers.get_timer(TimerName("t", key="k"), bench.now_ms)
    assert isinstance(told, TimerVerdict)
    assert told.verdict is Verdict.TOO_LATE, "an end that is new was forgotten, as its timer is old"


def test_views_show_held_timers_at_their_own_time(bench: Bench) -> None:
    bench.hold()
    due_ms = bench.now_ms + 1_000
    bench.set("a", due_ms, TW_TIMER_KEY="k")
    bench.set("b", due_ms + 1)
    bench.set("o", due_ms, "other")
    bench.tick(2_000)
    bench.set("c", bench.now_ms + HOUR_MS)
    views = bench.broker.timer_views
    page = views.read_page(TimerFilter(), None, 1)
    rest = views.read_page(TimerFilter(), page.after, 10)
    listed = [(one.message_id, one.is_held) for one in (*page.timers, *rest.timers)]
    assert listed == [("a", True), ("b", True), ("c", False)]
    counts = {
        TimerFilter(): 3, TimerFilter(topic="t"): 3, TimerFilter(is_held=True): 2,
        TimerFilter(is_held=False): 1, TimerFilter(from_ms=due_ms, until_ms=due_ms + 1): 1,
        TimerFilter(topic="t", key="k"): 1, TimerFilter(topic="other"): 0,
        TimerFilter(topic_prefix="t", is_held=True): 2, TimerFilter(topic_prefix="t", is_held=False): 1,
    }  # fmt: skip
    assert {wanted: views.count(wanted) for wanted in counts} == counts
    window = TimerFilter(from_ms=due_ms, until_ms=due_ms + 2 * HOUR_MS)
    assert views.histogram(window, 1_000) == [(due_ms, 2), (due_ms + 3_601_000, 1)]


def test_lateness_by_a_hold_is_counted_apart(bench: Bench) -> None:
    bench.hold()
    for number in range(100):
        bench.set(f"m{number}", bench.now_ms + 1_000)
    bench.tick(1_000)
    bench.release(60)
    bench.tick(1_000)
    bench.tick(HOUR_MS)
    bench.tick(1_000)
    statistics = bench.broker.statistics
    assert statistics.lateness_by_cause == {("t", "held"): 100}
    assert "t" not in statistics.lateness


def test_a_hold_and_a_release_are_refused_where_there_is_nothing_to_do(bench: Bench) -> None:
    changes, now_ms = bench.broker.topic_changes, bench.now_ms
    with pytest.raises(HoldConflict):
        changes.release("t", 0, now_ms)
    bench.hold()
    with pytest.raises(HoldConflict, match="topic release t"):
        changes.hold("t", "", now_ms)
    for name, error in (("unknown", TopicNotFound), ("TW_SYS_JOURNAL", IllegalTopic)):
        with pytest.raises(error):
            changes.hold(name, "", now_ms)
        with pytest.raises(error):
            changes.release(name, 0, now_ms)
    with pytest.raises(ClientMistake):
        changes.release("t", -1, now_ms)
    bench.release()


def test_a_hold_stays_when_its_topic_is_altered_and_goes_when_it_is_deleted(bench: Bench) -> None:
    bench.hold()
    bench.broker.topic_changes.alter("t", None, 3, bench.now_ms)
    bench.set("m", bench.now_ms + 1)
    bench.tick(10)
    bench.broker.topic_changes.purge("t", bench.now_ms)
    assert (bench.broker.topics.get("t").is_held, bench.held) == (True, 1)
    with pytest.raises(TopicInUse, match="1 timer "):
        bench.broker.topic_changes.delete("t", bench.now_ms)
    bench.broker.timers.cancel(TimerName("t", "m"), "", bench.now_ms)
    bench.flush()
    bench.broker.topic_changes.delete("t", bench.now_ms)
    bench.broker.topics.create("t", MessageType.MIXED, 2, bench.now_ms)
    bench.flush()
    bench.reopen()
    assert not bench.broker.topics.get("t").is_held


def test_a_rebuild_of_names_looks_for_the_earliest_held_timer_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It examined all held timers for each record of the log."""
    bench.hold()
    for number in range(40):
        bench.set(f"m{number}", bench.now_ms + 1_000)
    bench.tick(2_000)
    bench.checkpoint()
    for name in bench.disk.list("timers-names"):
        bench.disk.flip_bit(f"timers-names/{name}", 0)
    looks, first_due_ms = list[int](), HeldTimers.first_due_ms

    def look(table: HeldTimers) -> int:
        looks.append(first_due_ms(table))
        return looks[-1]

    monkeypatch.setattr(HeldTimers, "first_due_ms", look)
    bench.reopen()
    assert (bench.held, len(looks)) == (40, 1), "one look, since the file is damaged"
    bench.broker.timers.cancel(TimerName("t", "m7"), "", bench.now_ms)
    bench.flush()
    assert bench.held == 39


def test_the_table_holds_what_was_added_and_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "_GONE_MIN", 3)
    monkeypatch.setattr(holding, "_ROWS_AT_ONCE", 4)
    chance, table, expected = Random(7), HeldTimers(), dict[int, tuple[str, int]]()
    for timer_offset in range(0, 4_000, 10):
        topic, due_ms = chance.choice("abc"), chance.randrange(50)
        table.add(topic, due_ms, timer_offset)
        expected[timer_offset] = topic, due_ms
        for gone in chance.sample(sorted(expected), min(len(expected), chance.choice([0, 0, 1, 2]))):
            assert table.remove(gone)
            assert not table.remove(gone)
            del expected[gone]
        assert (len(table), table.between(0, 1 << 62)) == (len(expected), sorted(expected))
        for one in "abc":
            due = sorted((due_ms, offset) for offset, (name, due_ms) in expected.items() if name == one)
            assert table.counts[one] == len(due)
            assert table.first(one, 3) == due[:3]
        assert table.first_due_ms() == min((one[1] for one in expected.values()), default=1 << 62)
        again = HeldTimers()
        again.thaw([*table.freeze()])
        assert again.freeze() == table.freeze()
        assert {*again.between(0, 1 << 62)} == expected.keys()
    assert timer_offset not in HeldTimers()


def test_a_pace_makes_up_for_a_second_at_most() -> None:
    paces = ReleasePaces()
    assert paces.allowed("t", 10, 50_000, 100) == 1
    paces.spend("t", 10, 1)
    assert paces.allowed("t", 10, 50_099, 100) == 0
    assert paces.next_ms("t", 10, 50_099) == 50_100
    assert paces.allowed("t", 10, 90_000, 100) == 11
    assert paces.allowed("t", 10, 90_000, 4) == 4
    assert paces.allowed("t", 0, 90_000, 4) == 4


@pytest.mark.parametrize("damaged", [b'"name": "t"', b"why"])
@pytest.mark.parametrize("has_messages", [False, True])
@pytest.mark.parametrize("was_released", [False, True])
def test_a_hold_outlives_the_damage_of_the_record_of_its_topic_or_its_own(
    bench: Bench, damaged: bytes, *, has_messages: bool, was_released: bool
) -> None:
    """Found by flipped bits: all held timers were delivered at once."""
    if has_messages:
        for number in range(4):
            message = Message(topic="t", body=b"x", message_id=f"now{number}")
            bench.broker.sending.send(message, bench.now_ms)
        bench.flush()
    if was_released:
        bench.hold()
        bench.release()
    begun = bench.disk.read(SEGMENT, 0, 1 << 16).rfind(b"why")
    bench.hold()
    for name in "abc":
        bench.set(name, bench.now_ms + 1_000)
    bench.tick(2_000)
    assert bench.held == 3
    at = bench.disk.read(SEGMENT, 0, 1 << 16).find(damaged, begun + 3 if damaged == b"why" else 0)
    assert at >= 0, "the record is not where it is looked for"
    flipped = bench.disk.read(SEGMENT, at, 1)[0] ^ 1
    bench.disk.write(SEGMENT, at, bytes([flipped]))
    bench.reopen()
    bench.tick(5_000)
    assert [one for one in bench.delivered() if one in "abc"] == []
    assert bench.held == 3
    bench.set("d", bench.now_ms + 1_000)
    bench.tick(2_000)
    assert bench.held == 4, "the topic is not held any more"
    bench.release()
    bench.tick(1_000)
    assert sorted(one for one in bench.delivered() if one in "abcd") == [*"abcd"]
