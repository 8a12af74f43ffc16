"""The core's timers: one answer for each, whatever came before it (found by `tests/simulation`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commitlog.errors import StoreDamaged
from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Message
from commitlog.snapshots import snapshot
from services.broker.broker import Broker
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
from services.broker.timers.timer_ends import end_extra
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
SEGMENT_BYTES = 1 << 14
BODY = bytes(range(256))


class Store:
    """A broker on a disk in memory, whose shell does at once what it is told."""

    def __init__(self, **settings: object) -> None:
        self.disk = MemoryDisk()
        given: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "queue_count": 1, "tail_entries_max": 1}
        self.settings = BrokerSettings(**given | settings)
        self.now_ms = NOW_MS
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)

    def message(self, message_id: str, delay_ms: int | None, key: str = "", **given: str) -> Message:
        keyed = {"TW_TIMER_KEY": key} if key else {}
        due_ms = None if delay_ms is None else self.now_ms + delay_ms
        return Message(
            topic="t", body=BODY, message_id=message_id, delivery_ms=due_ms, properties=keyed | given
        )

    def send(self, message_id: str, delay_ms: int | None, key: str = "", **given: str) -> int:
        """Sends durably; returns the offset."""
        offset = self.broker.sending.send(
            self.message(message_id, delay_ms, key, **given), self.now_ms
        ).physical_offset
        self.flush()
        return offset

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def checkpoint(self) -> None:
        self.flush()
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def crash(self) -> None:
        self.disk.crash(lambda _: 0)
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)

    def go(self, by_ms: int) -> None:
        """Lets time pass, and everything happen that is due then."""
        self.now_ms += by_ms
        for _ in range(100):
            for effect in self.broker.tick(self.now_ms):
                if isinstance(effect, RunTimersJob):
                    effect.job.run(self.disk)
                    self.broker.complete_timers_job(effect.job)
                elif isinstance(effect, RetireSegments):
                    self.flush()
                    effect.retirement.run(self.disk)
                    self.broker.continue_retirement(effect.retirement, self.now_ms)
            self.flush()
            if self.broker.is_checkpoint_due:
                self.checkpoint()

    def go_on_and_merge_ends(self, by_ms: int) -> None:
        """Lets time pass, and a checkpoint merge the ends there are."""
        self.go(by_ms)
        for number in range(9):
            self.send(f"at {self.now_ms}, {number}", SECOND)
        self.go(2 * SECOND)
        self.checkpoint()

    def delivered(self) -> list[Message]:
        queues = self.broker.topics.get("t").queue_count
        return [
            one.message for queue in range(queues) for one in self.broker.finding.read("t", queue, 0, 999)
        ]

    def waiting(self) -> list[str]:
        listed = [one.message_id for one in self.broker.timer_views.read_page(TimerFilter(), None, 99).timers]
        assert self.broker.timer_views.count(TimerFilter()) == len(listed)
        return listed


def by_id(message_id: str) -> TimerName:
    return TimerName("t", message_id)


def test_one_key_has_one_timer_when_a_transaction_sets_it() -> None:
    store = Store()
    store.send("first", HOUR, "k")
    half = store.message("second", 2 * HOUR, "k")
    half.transactional = True
    receipt = store.broker.sending.send(half, store.now_ms)
    store.flush()
    store.broker.transactions.end("t", receipt.transaction_id, "second", Resolution.COMMIT, store.now_ms)
    store.flush()
    assert store.waiting() == ["second"]
    store.crash()
    assert store.waiting() == ["second"]


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({"TW_TIMER_CANCEL": "k"}, "CANCELLED"),
        ({"TW_TIMER_FIRE": "k"}, "FIRED"),
        ({"TW_TIMER_MOVE": "k", "TW_TIMER_TO": str(NOW_MS + DAY)}, "MOVED"),
    ],
)
def test_a_timer_that_carries_a_verb_on_its_own_key_ends_the_old_one_once(
    given: dict[str, str], verdict: str
) -> None:
    store = Store()
    store.send("old", HOUR, "k")
    store.send("new", 2 * HOUR, "k", **given)
    found = store.broker.timers.get_timer(by_id("new"), store.now_ms)
    assert isinstance(found, PendingTimer)
    assert found.message is not None
    assert found.message.properties["TW_TIMER_VERDICT"] == verdict
    assert store.waiting() == ["new"]
    store.crash()
    assert store.waiting() == ["new"]


@pytest.mark.parametrize("back_ms", [0, 100 * 366 * DAY])
def test_a_half_is_committed_with_its_verb_though_the_limit_of_delays_is_lower_by_then(back_ms: int) -> None:
    store = Store()
    store.send("old", HOUR, "k")
    half = store.message("half", None, TW_TIMER_MOVE="k", TW_TIMER_TO=str(NOW_MS + 30 * DAY))
    half.transactional = True
    receipt = store.broker.sending.send(half, store.now_ms)
    store.flush()
    store.settings = replace(store.settings, delay_ms_max=DAY)
    store.crash()
    at_ms = store.now_ms - back_ms
    store.broker.transactions.end("t", receipt.transaction_id, "half", Resolution.COMMIT, at_ms)
    store.flush()
    assert [one.message_id for one in store.delivered()] == ["half"]
    found = store.broker.timers.get_timer(by_id("old"), store.now_ms)
    assert isinstance(found, PendingTimer)
    assert found.due_ms == NOW_MS + 30 * DAY


def test_a_commit_that_cannot_read_who_has_its_key_appends_no_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.send("old", HOUR, "k")
    half = store.message("half", 2 * HOUR, "own", TW_TIMER_FIRE="k")
    half.transactional = True
    receipt = store.broker.sending.send(half, store.now_ms)
    store.flush()
    before, named = store.broker.end_offset, store.broker.timers.ends.find_by_name

    def damaged(name: TimerName) -> object:
        if name.key == "own":
            raise StoreDamaged("names cannot be read")
        return named(name)

    monkeypatch.setattr(store.broker.timers.ends, "find_by_name", damaged)
    with pytest.raises(StoreDamaged):
        store.broker.transactions.end("t", receipt.transaction_id, "half", Resolution.COMMIT, store.now_ms)
    assert store.broker.end_offset == before
    assert store.waiting() == ["old"]


def test_a_retry_of_a_timer_that_was_cancelled_before_it_was_durable_is_answered() -> None:
    store = Store()
    message = store.message("m", HOUR)
    first = store.broker.sending.send(message, store.now_ms)
    assert store.broker.timers.cancel(by_id("m"), "", store.now_ms).verdict is Verdict.CANCELLED
    assert store.broker.sending.send(message, store.now_ms).physical_offset == first.physical_offset
    store.flush()
    assert store.waiting() == []


def test_a_timer_whose_due_time_is_long_past_is_known_by_its_name() -> None:
    store = Store()
    first = store.send("m", -30 * DAY)
    store.checkpoint()
    store.go(SECOND)
    assert len(store.delivered()) == 1
    again = store.message("m", -30 * DAY)
    assert store.broker.sending.send(again, store.now_ms).physical_offset == first, (
        "a retry made a second timer"
    )
    found = store.broker.timers.get_timer(by_id("m"), store.now_ms)
    assert isinstance(found, TimerVerdict)
    assert found.verdict is Verdict.TOO_LATE


def test_what_was_forgotten_does_not_wait_again_when_the_clock_is_set_back() -> None:
    store = Store(timer_history_ms=HOUR)
    store.send("m", SECOND, "k")
    store.go(2 * SECOND)
    store.checkpoint()
    store.go(3 * HOUR)
    store.send("other", DAY)
    store.checkpoint()
    store.now_ms -= 3 * HOUR
    for name in (by_id("m"), TimerName("t", key="k")):
        verdict = store.broker.timers.cancel(name, "", store.now_ms).verdict
        assert verdict in (Verdict.FORGOTTEN, Verdict.NEVER_SET)
    assert store.waiting() == ["other"]


def test_a_timer_in_a_partition_is_listed_by_its_timer_key() -> None:
    store = Store()
    store.send("m", HOUR, "k")
    store.send("other", HOUR, "l")
    store.checkpoint()
    wanted = TimerFilter(topic="t", key="k")
    assert [one.message_id for one in store.broker.timer_views.read_page(wanted, None, 9).timers] == ["m"]
    assert store.broker.timer_views.count(wanted) == 1


def test_after_a_restart_the_older_snapshot_can_still_start_the_broker() -> None:
    store = Store()
    for number in range(3):
        store.send(f"soon-{number}", 100 * SECOND)
    store.send("late", DAY)
    store.checkpoint()
    store.go(6 * HOUR)
    store.send("between", SECOND)
    store.go(MINUTE)
    store.broker.timers.cancel(by_id("late"), "", store.now_ms)
    store.checkpoint()
    assert len(snapshot.offsets(store.disk)) == 2
    store.crash()
    newest = max(snapshot.offsets(store.disk))
    store.disk.flip_bit(snapshot.path_of(newest), 8 * 40)
    store.crash()
    assert store.broker.lost == []
    assert store.waiting() == []
    assert len(store.delivered()) == 4
    found = store.broker.timers.get_timer(by_id("late"), store.now_ms)
    assert isinstance(found, TimerVerdict)
    assert found.verdict is Verdict.ALREADY


def test_what_is_set_after_a_clock_was_far_ahead_is_known() -> None:
    store = Store()
    store.send("before", DAY)
    store.now_ms += 4_000 * DAY
    store.checkpoint()  # and nothing is stored at the wrong time
    store.now_ms -= 4_000 * DAY
    store.send("after", HOUR, "k")
    assert store.broker.timers.cancel(TimerName("t", key="k"), "", store.now_ms).verdict is Verdict.CANCELLED
    assert store.broker.timers.cancel(by_id("before"), "", store.now_ms).verdict is Verdict.CANCELLED


def test_a_clock_that_is_set_back_does_not_ask_for_checkpoints_for_ever() -> None:
    store = Store()
    store.broker.timers.partitions._rows_max = 1  # so that two timers are many, and are split
    for number in range(3):
        store.send(f"m{number}", 2 * DAY)
    store.checkpoint()
    store.now_ms += DAY + 22 * HOUR
    store.broker.tick(store.now_ms)
    assert store.broker.is_checkpoint_due, "its partition is to be split by now"
    store.now_ms -= DAY
    for _ in range(5):  # one for each level
        store.checkpoint()
        store.broker.tick(store.now_ms)
    assert not store.broker.is_checkpoint_due
    store.go(DAY + 2 * HOUR)
    assert [one.message_id for one in store.delivered()] == ["m0", "m1", "m2"]


def test_what_waits_outlives_the_log_that_it_was_written_to() -> None:
    """Retention of an hour: what is delayed 30 days is delivered, cancelled, moved, fired all the same."""
    store = Store(retention=RetentionPolicy(age_ms=HOUR))
    last = max(store.send(name, 30 * DAY, f"key-{name}") for name in ("stays", "goes", "moves", "fires"))
    for hours in range(60):
        for number in range(20):
            filler = Message(topic="other", body=BODY, message_id=f"filler-{hours}-{number}")
            store.broker.sending.send(filler, store.now_ms)
        store.go(HOUR)
    assert store.broker.gauges().log_first_offset > last, "the log still has them"
    assert sorted(store.waiting()) == ["fires", "goes", "moves", "stays"]

    assert (
        store.broker.timers.cancel(TimerName("t", key="key-goes"), "", store.now_ms).verdict
        is Verdict.CANCELLED
    )
    moved = store.broker.timers.move(by_id("moves"), NOW_MS + 40 * DAY, store.now_ms)
    assert moved.verdict is Verdict.MOVED
    assert store.broker.timers.fire(by_id("fires"), store.now_ms).verdict is Verdict.FIRED
    store.flush()
    store.crash()
    assert sorted(store.waiting()) == ["moves", "stays"]

    store.go(NOW_MS + 30 * DAY - 1 - store.now_ms)
    assert sorted(store.waiting()) == ["moves", "stays"]
    store.go(1)
    [arrived] = [one for one in store.delivered() if one.message_id == "stays"]
    assert (arrived.body, arrived.properties["TW_TIMER_KEY"]) == (BODY, "key-stays")
    store.go(10 * DAY)
    assert store.waiting() == []
    arrived_ids = [one.message_id for one in store.delivered()]
    assert arrived_ids.count("moves") == 1
    assert "goes" not in arrived_ids


def test_the_watermark_has_passed_what_is_forgotten() -> None:
    """A start that replays deliveries does not move it; it alone tells of them once the rest is deleted."""
    store = Store(timer_history_ms=HOUR)
    store.checkpoint()
    store.send("m", MINUTE)
    store.send("waits", DAY)
    store.go(5 * MINUTE)
    store.crash()
    partitions, ends = store.broker.timers.partitions, store.broker.timers.ends
    assert partitions.watermark == (0, 0)
    store.go(2 * HOUR)
    store.send("newest", None)
    store.checkpoint()
    assert ends.forgotten_ms == store.now_ms - HOUR
    assert partitions.watermark >= (ends.forgotten_ms - 1, 0)
    assert store.waiting() == ["waits"]


def test_the_history_of_a_timer_that_waits_is_not_forgotten_however_late_it_is() -> None:
    """Else nothing could tell one in a damaged file from one that was delivered long ago."""
    store = Store(timer_history_ms=HOUR)
    store.send("late", MINUTE)
    store.checkpoint()
    store.now_ms += DAY
    for effect in store.broker.tick(store.now_ms):
        if isinstance(effect, RunTimersJob):
            store.broker.requeue_timers_job(effect.job)  # its file is not read
    store.send("other", MINUTE)
    store.checkpoint()
    assert store.broker.timers.ends.forgotten_ms <= NOW_MS
    store.go(2 * SECOND)
    store.checkpoint()
    assert [one.message_id for one in store.delivered()] == ["late"]
    assert store.broker.timers.ends.forgotten_ms == store.now_ms - HOUR


def test_a_late_timer_that_was_not_durable_before_a_later_delivery_comes_after_a_restart() -> None:
    """The replay places it at its own due time, before that of the delivery; the watermark stays before."""
    store = Store()
    store.checkpoint()
    store.send("early", MINUTE)
    store.go(MINUTE - 1)
    store.now_ms += 1
    store.broker.sending.send(store.message("late", -MINUTE // 2), store.now_ms)  # appended, not durable
    store.broker.tick(store.now_ms)
    store.flush()
    assert [one.message_id for one in store.delivered()] == ["early"]
    store.crash()
    assert store.waiting() == ["late"]
    store.go(1)
    assert [one.message_id for one in store.delivered()] == ["early", "late"]


def test_a_timer_that_is_late_by_more_than_the_history_is_listed_and_delivered_after_a_start() -> None:
    store = Store(timer_history_ms=HOUR)
    store.send("before", SECOND)
    store.go(DAY)
    store.send("plain", None)
    store.checkpoint()  # what ended before the history is forgotten
    store.send("late", -12 * HOUR)
    store.crash()
    assert store.waiting() == ["late"]
    store.checkpoint()
    store.crash()
    assert store.waiting() == ["late"]
    store.go(SECOND)
    assert [one.message_id for one in store.delivered()] == ["before", "plain", "late"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_timers_come_at_their_own_time_after_the_clock_was_ahead_for_a_moment(is_restarted: bool) -> None:
    """The last timer that was delivered lies an hour ahead, and so does the place of all that follow."""
    store = Store()
    store.go(HOUR)
    store.send("ahead", 0)
    store.flush()
    store.go(1)
    assert [one.message_id for one in store.delivered()] == ["ahead"]
    store.now_ms -= HOUR
    store.go(1)
    store.send("soon", 2_000)
    store.send("later", 60_000)
    store.flush()
    if is_restarted:
        store.checkpoint()
        store.crash()
    store.go(1_999)
    assert len(store.delivered()) == 1
    store.go(1)
    assert [one.message_id for one in store.delivered()] == ["ahead", "soon"]
    if is_restarted:
        store.checkpoint()
        store.crash()
    store.go(60_000)
    assert [one.message_id for one in store.delivered()] == ["ahead", "soon", "later"]
    store.go(2 * HOUR)
    assert len(store.delivered()) == 3
    assert store.waiting() == []


@pytest.mark.parametrize("before_ms", [HOUR, 168 * HOUR])
@pytest.mark.parametrize("after_ms", [HOUR, 168 * HOUR])
@pytest.mark.parametrize("is_merged_before", [False, True])
def test_no_change_of_the_history_makes_a_delivered_timer_wait_again(
    before_ms: int, after_ms: int, is_merged_before: bool
) -> None:
    """Found by hand: an end kept under a history of 1 h was dropped, and its name kept under one of 168 h."""
    store = Store(timer_history_ms=before_ms)
    store.send("m", SECOND, "k")
    for number in range(20):
        store.send(f"name {number}", 400 * DAY)  # so the run of the names is too large to be merged soon
    store.go(2 * SECOND)
    store.checkpoint()
    if is_merged_before:
        store.go_on_and_merge_ends(3 * HOUR)
    store.settings = replace(store.settings, timer_history_ms=after_ms)
    store.crash()
    store.go_on_and_merge_ends(3 * HOUR)
    store.crash()
    over = {Verdict.FORGOTTEN, Verdict.NEVER_SET}
    is_kept = after_ms > HOUR and not (is_merged_before and before_ms == HOUR)
    expected = {Verdict.TOO_LATE} if is_kept else over
    for name in (by_id("m"), TimerName("t", key="k")):
        found = store.broker.timers.get_timer(name, store.now_ms)
        assert isinstance(found, TimerVerdict), "it was delivered, and is listed as one that waits"
        assert found.verdict in expected
        assert store.broker.timers.cancel(name, "", store.now_ms).verdict in expected
    assert store.broker.timers.pending_count == 20
    store.flush()
    assert [one.message_id for one in store.delivered()].count("m") == 1


def test_an_end_of_a_run_that_holds_until_when_it_is_kept_is_read_as_one_that_is_kept_longer() -> None:
    """So runs of before the due time was stored are; nothing else about the end is another."""
    store = Store(timer_history_ms=HOUR)
    store.send("m", SECOND)
    store.go(2 * SECOND)
    ends = store.broker.timers.ends
    named = ends.find_by_name(by_id("m"))
    assert named is not None
    ended = ends.find_end(named.timer_offset)
    assert ended is not None
    until_ms = ended.ended_ms + HOUR
    ends.ends.put(named.timer_offset, 0, ended.ended_offset, ended.ended_ms, end_extra(ended.end, until_ms))
    assert ends.find_end(named.timer_offset) == ended
    store.checkpoint()
    store.go(HOUR + MINUTE)
    store.send("other", None)
    store.checkpoint()
    found = store.broker.timers.get_timer(by_id("m"), store.now_ms)
    assert isinstance(found, TimerVerdict)
    assert found.verdict in (Verdict.FORGOTTEN, Verdict.NEVER_SET)
    assert ends.find_end(named.timer_offset) == ended, "its end is there an hour longer than its name"
