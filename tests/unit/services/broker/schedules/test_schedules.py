"""Schedules over the in-memory disk: never early, never twice, and what was missed goes by the policy."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from commitlog import limits
from commitlog.log.recovery import LogScan
from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import MessageType
from consumequeue.filters.filter import EVERYTHING, parse_tags
from services.broker.broker import Broker
from services.broker.schedules.schedule_values import (
    MissedRunPolicy,
    Schedule,
    ScheduleState,
    freeze_schedule,
    thaw_schedule,
)
from services.broker.schedules.schedules import preview
from services.broker.spine.errors import (
    DiskFull,
    IllegalKey,
    IllegalMessageGroup,
    IllegalProperty,
    IllegalSchedule,
    IllegalTag,
    MessageTypeConflict,
    ScheduleNotFound,
    TopicNotFound,
)
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery, RetireSegments, WakeReceivers
from tests.memory_disk import MemoryDisk
from tidewheel.errors import BodyEmpty, BodyTooLarge, IllegalTopic

NOW_MS = 1_763_700_000_000  # 2025-11-21 04:40:00 UTC
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
SETTINGS = BrokerSettings(segment_bytes=64 * 1024)


def schedule(name: str = "s", cron: str = "* * * * *", **attributes: Any) -> Schedule:
    return Schedule(
        **{"name": name, "cron": cron, "time_zone": "UTC", "topic": "t", "body": b"go"} | attributes
    )


class Bench:
    """A broker with everything flushed after each call."""

    def __init__(self, settings: BrokerSettings = SETTINGS) -> None:
        self.disk, self.settings, self.now_ms = MemoryDisk(), settings, NOW_MS
        self.broker = Broker.open(self.disk, settings, self.now_ms)

    def set(self, name: str = "s", cron: str = "* * * * *", **attributes: Any) -> None:
        self.broker.schedules.set(schedule(name, cron, **attributes), self.now_ms)
        self.flush()

    def flush(self) -> list[object]:
        effects: list[object] = []
        while flush := self.broker.take_flush():
            flush.write()
            effects += self.broker.complete_flush(flush, self.now_ms)
        return effects

    def tick(self) -> list[object]:
        """Does everything that is due now."""
        effects: list[object] = []
        while (due_ms := self.broker.next_due_ms()) is not None and due_ms <= self.now_ms:
            effects += self.broker.tick(self.now_ms) + self.flush()
        return effects

    def advance(self, by_ms: int) -> list[object]:
        """Lets time pass, from one event to the next."""
        end_ms, effects = self.now_ms + by_ms, self.tick()
        while (due_ms := self.broker.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            effects += self.tick()
        self.now_ms = end_ms
        return effects

    def jump(self, by_ms: int) -> None:
        """The clock leaps, or the broker was away for so long."""
        self.now_ms += by_ms
        self.tick()

    def reopen(self) -> None:
        self.broker = Broker.open(self.disk, self.settings, self.now_ms)

    def crash(self, dice: random.Random) -> None:
        """The power goes: some of what was not synced is lost, and all that was not written."""
        self.disk.crash(lambda byte_count: dice.randint(0, byte_count))
        self.reopen()

    def checkpoint(self) -> None:
        assert self.broker.is_quiet
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)

    def sent(self, topic: str = "t") -> list[Delivery]:
        """Every message of a topic, in the order in which it was stored."""
        found: list[Delivery] = []
        for queue_id in range(self.broker.topics.get(topic).queue_count):
            found += self.broker.finding.read(topic, queue_id, 0, 10_000)
        return sorted(found, key=lambda delivery: delivery.physical_offset)

    def occurrences(self, topic: str = "t") -> list[int]:
        """The times that the sent messages name, in minutes from the start."""
        return [int(one.message.properties["TW_OCCURRENCE_MS"]) - NOW_MS for one in self.sent(topic)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def minutes(*numbers: float) -> list[int]:
    return [round(number * MINUTE_MS) for number in numbers]


def test_an_occurrence_is_an_ordinary_message_at_its_time(bench: Bench) -> None:
    bench.set("report", tag="daily", keys=("k",), properties={"shop": "eu"})
    assert bench.advance(MINUTE_MS - 1) == []
    assert bench.advance(1) == [WakeReceivers(("t",))]
    (got,) = bench.sent()
    assert got.store_ms == NOW_MS + MINUTE_MS
    assert got.message.body == b"go"
    assert (got.message.tag, got.message.keys) == ("daily", ("k",))
    assert got.message.properties == {
        "shop": "eu",
        "TW_SCHEDULE": "report",
        "TW_OCCURRENCE_MS": str(NOW_MS + MINUTE_MS),
    }
    assert got.message.message_id == f"report@{NOW_MS + MINUTE_MS}"
    (found,) = bench.broker.finding.find("t", f"report@{NOW_MS + MINUTE_MS}", 5).messages
    assert found.physical_offset == got.physical_offset
    (leased,) = bench.broker.receiving.receive(
        "g", "t", parse_tags("daily"), 9, 20_000, "c", False, bench.now_ms
    ).deliveries
    assert leased.message.properties["TW_SCHEDULE"] == "report"


def test_one_occurrence_pends_and_each_comes_once(bench: Bench) -> None:
    bench.set()
    bench.advance(5 * MINUTE_MS)
    assert bench.occurrences() == minutes(1, 2, 3, 4, 5)
    view = bench.broker.schedules.get("s", 2)
    assert [one.at_ms - NOW_MS for one in view.upcoming_runs] == minutes(6, 7)
    assert (view.sent_count, view.last_ms, view.state) == (5, NOW_MS + 5 * MINUTE_MS, ScheduleState.ACTIVE)


def test_messages_of_a_group_share_a_queue_and_others_take_turns(bench: Bench) -> None:
    bench.set("ordered", message_group="g", topic="grouped")
    bench.set("free")
    bench.advance(8 * MINUTE_MS)
    assert len({one.queue_id for one in bench.sent("grouped")}) == 1
    assert len({one.queue_id for one in bench.sent("t")}) == bench.settings.queue_count


def test_a_window_bounds_the_occurrences(bench: Bench) -> None:
    bench.set(start_ms=NOW_MS + 3 * MINUTE_MS, end_ms=NOW_MS + 5 * MINUTE_MS)
    bench.advance(HOUR_MS)
    assert bench.occurrences() == minutes(3, 4, 5)
    view = bench.broker.schedules.get("s", 1)
    assert (view.state, view.upcoming_runs) == (ScheduleState.ENDED, ())
    bench.reopen()
    bench.advance(HOUR_MS)
    assert bench.broker.schedules.get("s", 1).sent_count == 3


def test_the_local_time_is_that_of_the_zone(bench: Bench) -> None:
    bench.set(cron="0 9 * * *", time_zone="Europe/Berlin")
    coming = bench.broker.schedules.get("s", 1).upcoming_runs
    assert coming[0].local == "2025-11-21T09:00:00+01:00"
    assert coming[0].at_ms == NOW_MS + 3 * HOUR_MS + 20 * MINUTE_MS


# Across restarts.


def test_a_restart_repeats_nothing_and_loses_nothing(bench: Bench) -> None:
    bench.set()
    for _ in range(4):
        bench.advance(MINUTE_MS)
        bench.reopen()
    bench.advance(MINUTE_MS)
    assert bench.occurrences() == minutes(1, 2, 3, 4, 5)
    assert bench.broker.schedules.get("s", 1).sent_count == 5


def test_what_was_appended_and_not_durable_comes_again_and_only_then_counts(bench: Bench) -> None:
    bench.set()
    bench.now_ms += MINUTE_MS
    bench.broker.tick(bench.now_ms)
    assert bench.broker.schedules.get("s", 1).sent_count == 1
    bench.crash(random.Random(7))
    assert bench.broker.schedules.get("s", 1).sent_count == 0
    bench.tick()
    assert bench.occurrences() == minutes(1)


def test_a_dead_letter_of_an_old_run_is_no_run(bench: Bench) -> None:
    bench.set()
    bench.advance(3 * MINUTE_MS)
    for lease in bench.broker.receiving.receive(
        "g", "t", EVERYTHING, 9, 20_000, "c", False, bench.now_ms
    ).deliveries:
        bench.broker.receiving.forward_to_dead_letter("g", "t", lease.receipt_handle, bench.now_ms)
    bench.flush()
    assert len(bench.occurrences("%DLQ%g")) == 3
    bench.reopen()
    view = bench.broker.schedules.get("s", 1)
    assert (view.sent_count, view.last_ms) == (3, NOW_MS + 3 * MINUTE_MS)
    bench.advance(MINUTE_MS)
    assert sorted(bench.occurrences()) == minutes(1, 2, 3, 4)


def test_a_schedule_that_was_never_durable_is_gone(bench: Bench) -> None:
    view = bench.broker.schedules.set(schedule(), NOW_MS)
    assert view.durable_at > bench.broker.durable_offset
    bench.crash(random.Random(7))
    assert bench.broker.schedules.page() == []


def test_a_snapshot_keeps_schedules_and_retention_may_take_their_records() -> None:
    settings = replace(SETTINGS, segment_bytes=4096, retention=RetentionPolicy(log_bytes_max=2 * 4096))
    bench = Bench(settings)
    bench.set(
        "minutely", "* * * * *", body=b"m" * 300, missed=MissedRunPolicy.ALL, missed_max=7, keys=("a", "b")
    )
    bench.set("rests", "* * * * *")
    bench.broker.schedules.pause("rests", NOW_MS)
    bench.set("gone", "0 0 1 1 *")
    bench.broker.schedules.delete("gone", NOW_MS)
    bench.flush()
    before = bench.broker.schedules.get("minutely", 0).schedule
    for _ in range(60):
        for effect in bench.advance(MINUTE_MS):
            if isinstance(effect, RetireSegments):
                effect.retirement.run(bench.disk)
                bench.broker.continue_retirement(effect.retirement, bench.now_ms)
                bench.flush()
        if bench.broker.is_checkpoint_due:
            bench.checkpoint()
    assert bench.broker.gauges().log_first_offset > 4096, "the record that set it is deleted"
    bench.reopen()
    view = bench.broker.schedules.get("minutely", 1)
    assert (view.schedule, view.sent_count, view.last_ms) == (before, 60, bench.now_ms)
    assert [one.schedule.name for one in bench.broker.schedules.page()] == ["minutely", "rests"]
    assert bench.broker.schedules.get("rests", 1).state is ScheduleState.PAUSED
    bench.advance(MINUTE_MS)
    assert bench.occurrences()[-2:] == minutes(60, 61)


def test_the_template_survives_as_it_was() -> None:
    full = schedule(
        body=bytes(range(256)),
        tag="t",
        keys=("a", "b"),
        message_group="g",
        properties={"ä": "ö"},
        missed=MissedRunPolicy.ALL,
        missed_max=3,
        start_ms=1,
        end_ms=2,
    )
    assert thaw_schedule(freeze_schedule(full)) == full
    assert thaw_schedule(freeze_schedule(schedule())) == schedule()


# What was missed.


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (MissedRunPolicy.SKIP, minutes(1, 62)),
        (MissedRunPolicy.ONCE, minutes(1, 61, 62)),
        (MissedRunPolicy.ALL, minutes(1, 57, 58, 59, 60, 61, 62)),
    ],
)
@pytest.mark.parametrize("is_restart", [True, False], ids=["restart", "clock leap"])
def test_missed_runs_go_by_the_policy(
    bench: Bench, missed: MissedRunPolicy, expected: list[int], is_restart: bool
) -> None:
    bench.set(missed=missed, missed_max=5)
    bench.advance(MINUTE_MS)
    bench.now_ms += HOUR_MS + MINUTE_MS // 2
    if is_restart:
        bench.reopen()
    bench.tick()
    bench.advance(MINUTE_MS)
    bench.reopen()
    bench.tick()
    assert bench.occurrences() == expected
    passed_ms = bench.broker.schedules.get("s", 1).passed_ms - NOW_MS
    assert minutes(56)[0] <= passed_ms < minutes(62)[0]


def test_a_run_that_is_a_little_late_was_not_missed(bench: Bench) -> None:
    bench.set("skips", missed=MissedRunPolicy.SKIP)
    bench.jump(MINUTE_MS + limits.SCHEDULE_LATE_MS_MAX)
    bench.jump(MINUTE_MS + 1)
    assert bench.occurrences() == minutes(1)
    assert bench.broker.schedules.get("skips", 1).passed_ms == NOW_MS + 2 * MINUTE_MS


def test_fewer_missed_than_the_bound_are_all_made_up_in_order(bench: Bench) -> None:
    bench.set("a", missed=MissedRunPolicy.ALL)
    bench.set("b", cron="*/30 * * * *", missed=MissedRunPolicy.ALL)
    bench.jump(HOUR_MS)
    times = [
        one.message.properties["TW_OCCURRENCE_MS"] for one in bench.sent() if one.message.message_id[0] == "a"
    ]
    assert times == [str(NOW_MS + number * MINUTE_MS) for number in range(1, 61)]
    assert bench.broker.schedules.get("b", 1).sent_count == 2
    assert bench.broker.schedules.get("a", 1).passed_ms == 0


@pytest.mark.parametrize("missed", MissedRunPolicy)
def test_years_of_seconds_are_decided_about_at_once(bench: Bench, missed: MissedRunPolicy) -> None:
    bench.set(cron="* * 3 * * *", missed=missed, missed_max=100)
    bench.jump(5 * 366 * 24 * HOUR_MS)
    assert (
        len(bench.sent())
        == {MissedRunPolicy.SKIP: 0, MissedRunPolicy.ONCE: 1, MissedRunPolicy.ALL: 100}[missed]
    )
    if missed is not MissedRunPolicy.SKIP:
        last = bench.sent()[-1].message.properties["TW_OCCURRENCE_MS"]
        assert int(last) == NOW_MS + 5 * 366 * 24 * HOUR_MS - (40 * 60 + 1) * 1000 - HOUR_MS + HOUR_MS
    assert bench.broker.schedules.get("s", 1).upcoming_runs[0].at_ms > bench.now_ms


def test_a_tick_decides_about_so_many_and_the_next_about_the_rest(bench: Bench) -> None:
    for number in range(30):
        bench.set(f"s{number:02}", missed=MissedRunPolicy.ALL, missed_max=200)
    bench.now_ms += 10 * HOUR_MS
    ticks = 0
    while (bench.broker.next_due_ms() or bench.now_ms + 1) <= bench.now_ms:
        before = sum(one.passed_ms > 0 for one in bench.broker.schedules.page())
        bench.broker.tick(bench.now_ms)
        bench.flush()
        decided = sum(one.passed_ms > 0 for one in bench.broker.schedules.page()) - before
        assert decided * 200 * 5 <= limits.SCHEDULE_SEARCHES_PER_TICK_MAX
        ticks += 1
    assert [one.sent_count for one in bench.broker.schedules.page()] == [200] * 30
    assert ticks >= 30 * 200 * 5 / limits.SCHEDULE_SEARCHES_PER_TICK_MAX


def test_a_crash_while_runs_are_made_up_repeats_none(bench: Bench) -> None:
    bench.set(missed=MissedRunPolicy.ALL, missed_max=10)
    bench.now_ms += HOUR_MS
    for _ in range(4):
        bench.broker.tick(bench.now_ms)
        bench.flush()
    bench.crash(random.Random(7))
    bench.tick()
    assert bench.occurrences() == minutes(*range(51, 61))


def test_a_missed_run_that_ended_with_the_window_still_goes_by_the_policy(bench: Bench) -> None:
    bench.set("once", missed=MissedRunPolicy.ONCE, end_ms=NOW_MS + 10 * MINUTE_MS)
    bench.set("skip", missed=MissedRunPolicy.SKIP, end_ms=NOW_MS + 10 * MINUTE_MS)
    bench.jump(HOUR_MS)
    assert bench.occurrences() == minutes(10)
    assert {one.state for one in bench.broker.schedules.page()} == {ScheduleState.ENDED}


# The clock.


def test_a_clock_that_goes_back_repeats_nothing_and_sends_nothing_early(bench: Bench) -> None:
    bench.set()
    bench.advance(10 * MINUTE_MS)
    bench.now_ms -= 5 * MINUTE_MS + 10_000
    bench.tick()
    bench.reopen()
    assert bench.broker.schedules.get("s", 1).upcoming_runs[0].at_ms == NOW_MS + 11 * MINUTE_MS
    bench.advance(6 * MINUTE_MS)
    assert bench.occurrences() == minutes(*range(1, 11))
    bench.advance(MINUTE_MS)
    assert bench.occurrences() == minutes(*range(1, 12))


@pytest.mark.parametrize("change", ["set anew", "changed", "resumed", "paused over a restart"])
def test_nothing_that_is_done_to_a_schedule_makes_it_repeat_what_the_clock_repeats(
    bench: Bench, change: str
) -> None:
    bench.set()
    bench.advance(10 * MINUTE_MS)
    if change == "set anew":
        bench.broker.schedules.delete("s", bench.now_ms)
    if "paused" in change or change == "resumed":
        bench.broker.schedules.pause("s", bench.now_ms)
    bench.flush()
    bench.now_ms -= 5 * MINUTE_MS
    if change == "paused over a restart":
        bench.checkpoint()
        bench.reopen()
    if "set" in change or change == "changed":
        bench.set(body=b"other")
    else:
        bench.broker.schedules.resume("s", bench.now_ms)
    bench.flush()
    bench.reopen()
    bench.advance(8 * MINUTE_MS)
    assert bench.occurrences() == minutes(*range(1, 14))


# Verbs.


def test_a_pause_is_not_made_up(bench: Bench) -> None:
    bench.set(missed=MissedRunPolicy.ALL)
    bench.advance(MINUTE_MS)
    assert bench.broker.schedules.pause("s", bench.now_ms).upcoming_runs == ()
    bench.flush()
    bench.advance(10 * MINUTE_MS)
    bench.reopen()
    assert bench.broker.schedules.get("s", 1).state is ScheduleState.PAUSED
    bench.broker.schedules.resume("s", bench.now_ms)
    bench.flush()
    bench.advance(2 * MINUTE_MS)
    assert bench.occurrences() == minutes(1, 12, 13)


def test_a_deleted_schedule_sends_no_more(bench: Bench) -> None:
    bench.set()
    bench.advance(2 * MINUTE_MS)
    assert bench.broker.schedules.delete("s", bench.now_ms).sent_count == 2
    bench.flush()
    bench.advance(HOUR_MS)
    bench.reopen()
    bench.advance(HOUR_MS)
    assert bench.occurrences() == minutes(1, 2)
    for verb in (bench.broker.schedules.delete, bench.broker.schedules.pause, bench.broker.schedules.resume):
        with pytest.raises(ScheduleNotFound, match="There is no 's'"):
            verb("s", bench.now_ms)
    with pytest.raises(ScheduleNotFound):
        bench.broker.schedules.get("s", 1)


def test_a_changed_schedule_goes_on_as_it_is_now(bench: Bench) -> None:
    bench.set()
    bench.advance(2 * MINUTE_MS)
    bench.set(cron="*/10 * * * *", body=b"changed")
    bench.advance(20 * MINUTE_MS)
    bench.reopen()
    assert bench.occurrences() == minutes(1, 2, 10, 20)
    assert [one.message.body for one in bench.sent()] == [b"go", b"go", b"changed", b"changed"]
    assert bench.broker.schedules.get("s", 1).sent_count == 4


def test_what_is_repeated_stores_nothing(bench: Bench) -> None:
    bench.set()
    end_offset = bench.broker.end_offset
    bench.set()
    bench.broker.schedules.resume("s", NOW_MS)
    assert bench.broker.end_offset == end_offset
    bench.broker.schedules.pause("s", NOW_MS)
    end_offset = bench.broker.end_offset
    bench.broker.schedules.pause("s", NOW_MS)
    assert bench.broker.end_offset == end_offset


def test_a_preview_shows_what_would_come_and_keeps_nothing(bench: Bench) -> None:
    coming = preview(schedule(cron="0 0 29 2 *"), NOW_MS, 2)
    assert [one.local for one in coming] == ["2028-02-29T00:00:00+00:00", "2032-02-29T00:00:00+00:00"]
    assert len(preview(schedule(), NOW_MS, 10**9)) == limits.SCHEDULE_PREVIEW_COUNT_MAX
    assert preview(schedule(cron="0 0 30 2 *"), NOW_MS, 5) == ()
    assert bench.broker.schedules.page() == []


@pytest.mark.parametrize(
    ("attributes", "error", "words"),
    [
        ({"time_zone": "Mars/Base"}, IllegalSchedule, "time zone 'Mars/Base' cannot be read"),
        ({"cron": "61 * * * *"}, IllegalSchedule, "cannot be read"),
        ({"cron": "* * *"}, IllegalSchedule, "it has 3 fields"),
        ({"cron": "0 0 30 2 *"}, IllegalSchedule, "'0 0 30 2 \\*' in UTC never occurs"),
        ({"cron": "1," * 200 + "1 * * * *"}, IllegalSchedule, "the limit is 256"),
        ({"name": ""}, IllegalSchedule, "must have 1 to 100"),
        ({"name": "a b"}, IllegalSchedule, "without '/' and blanks"),
        ({"name": "a/b"}, IllegalSchedule, "without '/' and blanks"),
        ({"name": "n" * 101}, IllegalSchedule, "must have 1 to 100"),
        ({"missed_max": 0}, IllegalSchedule, "allowed are 1 to 1000"),
        ({"missed_max": 1001}, IllegalSchedule, "allowed are 1 to 1000"),
        ({"end_ms": NOW_MS}, IllegalSchedule, "which is past, not after its start"),
        ({"end_ms": NOW_MS + 1}, IllegalSchedule, "never occurs before its end, in 1ms"),
        ({"start_ms": NOW_MS + 9, "end_ms": NOW_MS + 9}, IllegalSchedule, "not after its start"),
        ({"start_ms": -1}, IllegalSchedule, "It starts 20413d4h ago"),
        ({"start_ms": 1 << 60}, IllegalSchedule, "It starts in"),
        ({"end_ms": 1 << 60}, IllegalSchedule, "It ends in"),
        ({"body": b""}, BodyEmpty, "at least one byte"),
        ({"body": b"x" * 65_537}, BodyTooLarge, "the limit for schedules is 65536"),
        ({"tag": "a|b"}, IllegalTag, "must not be blank"),
        ({"keys": (" ",)}, IllegalKey, "must not be blank"),
        ({"message_group": "g" * 64}, IllegalMessageGroup, "more than 63 bytes"),
        ({"properties": {"TW_SCHEDULE": "x"}}, IllegalProperty, "reserved"),
        ({"topic": "TW_SYS_SCHEDULE"}, IllegalTopic, "own topics"),
        ({"topic": "a b"}, IllegalTopic, "only a-z, A-Z, 0-9"),
        ({"topic": "delays"}, MessageTypeConflict, "'delays' takes DELAY messages"),
        ({"topic": "delays", "message_group": "g"}, MessageTypeConflict, "this one is FIFO"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_stored(
    bench: Bench, attributes: dict[str, Any], error: type[Exception], words: str
) -> None:
    bench.broker.topics.create("delays", MessageType.DELAY, 1, NOW_MS)
    end_offset = bench.broker.end_offset
    with pytest.raises(error, match=words):
        bench.broker.schedules.set(schedule(**attributes), NOW_MS)
    assert bench.broker.end_offset == end_offset
    assert (bench.broker.schedules.page(), len(bench.broker.topics.all())) == ([], 1)


def test_a_topic_that_is_not_there_is_made_only_where_that_is_allowed(bench: Bench) -> None:
    bench.set()
    assert bench.broker.topics.get("t").message_type is MessageType.MIXED
    strict = Bench(replace(SETTINGS, auto_create_topics=False))
    with pytest.raises(TopicNotFound):
        strict.set()


def test_nobody_can_send_in_the_name_of_a_schedule(bench: Bench) -> None:
    message = schedule().message(NOW_MS, NOW_MS)
    with pytest.raises(IllegalProperty, match="'TW_SCHEDULE' is empty or reserved"):
        bench.broker.sending.send(message, NOW_MS)


def test_there_is_room_for_so_many(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCHEDULE_COUNT_MAX", 2)
    monkeypatch.setattr(limits, "SCHEDULE_BODIES_BYTES_MAX", 100)
    bench.set("a", body=b"x" * 60)
    with pytest.raises(IllegalSchedule, match="may have 100 bytes"):
        bench.set("b", body=b"x" * 41)
    bench.set("a", body=b"x" * 59)
    bench.set("b", body=b"x" * 41)
    with pytest.raises(IllegalSchedule, match="There are 2 already"):
        bench.set("c", body=b"x")
    bench.broker.schedules.delete("a", NOW_MS)
    bench.set("c", body=b"x")


def test_many_that_are_due_at_once_go_as_fast_as_the_disk_takes_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        bench.set(f"s{number}", body=bytes(600))
    monkeypatch.setattr(limits, "UNFLUSHED_BYTES_MAX", 1_000)
    bench.now_ms = NOW_MS + MINUTE_MS
    bench.broker.tick(bench.now_ms)
    assert 1_000 < bench.broker.end_offset - bench.broker.durable_offset < 3_000
    assert bench.broker.next_due_ms() > bench.now_ms, "the rest waits for the flush, and nobody turns round"
    bench.flush()
    assert bench.broker.next_due_ms() == bench.now_ms
    while bench.broker.next_due_ms() == bench.now_ms:
        bench.broker.tick(bench.now_ms)
        bench.flush()
    assert len(bench.sent()) == 5


def test_while_the_disk_is_full_runs_wait_and_then_go_by_the_policy(bench: Bench) -> None:
    bench.set(missed=MissedRunPolicy.ONCE)
    bench.broker.housekeeping.has_reserve = False
    bench.broker.postpone_housekeeping(NOW_MS + HOUR_MS)
    bench.advance(10 * MINUTE_MS)
    assert bench.sent() == []
    with pytest.raises(DiskFull):
        bench.set("another")
    bench.broker.housekeeping.measure_space()
    bench.advance(20_000)
    assert bench.occurrences() == minutes(10)


# Everything at once, by seeds.


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_no_run_is_early_or_twice_and_none_is_lost(seed: int) -> None:
    """Crashes, restarts, leaps of the clock both ways, checkpoints; the log itself is asked in the end."""
    dice, bench = random.Random(seed), Bench(replace(SETTINGS, segment_bytes=16 * 1024))
    crons = ["*/20 * * * * *", "* * * * *", "*/7 * * * *"]
    for number, missed in enumerate(MissedRunPolicy):
        bench.set(missed.value, crons[(number + seed) % 3], missed=missed, missed_max=1_000)
    for _ in range(60):
        step = dice.randrange(8)
        if step < 4:
            bench.advance(dice.randrange(120_000))
        elif step == 4:
            bench.now_ms += dice.randrange(900_000)
            bench.broker.tick(bench.now_ms)
            bench.crash(dice)
        elif step == 5:
            bench.now_ms -= dice.randrange(300_000)
            bench.reopen()
        elif step == 6:
            bench.flush()
            bench.checkpoint()
        else:
            bench.reopen()
    bench.tick()
    check_log(bench)


def check_log(bench: Bench) -> None:
    """No occurrence is twice, none before its time; with policy `all` there is no gap."""
    bench.flush()
    seen: dict[str, list[int]] = {}
    for found in LogScan(bench.disk, bench.settings.segment_bytes, 0):
        message_id = found.record.properties.decode().partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
        if "@" in message_id:
            name, _, at_ms = message_id.partition("@")
            seen.setdefault(name, []).append(int(at_ms))
            assert found.record.store_ms >= int(at_ms), f"{message_id} is early"
    for name, times in seen.items():
        assert times == sorted(set(times)), f"{name} occurred twice, or out of order"
    one = bench.broker.schedules.get("all", 0).schedule
    assert seen["all"] == list(one.recurrence.between(NOW_MS, seen["all"][-1]))
    assert one.next_after(seen["all"][-1]) > max(bench.now_ms, seen["all"][-1])  # type: ignore[operator]


def test_what_a_snapshot_keeps_does_not_change_while_it_is_written() -> None:
    bench = Bench()
    for name in ("a", "b"):
        bench.broker.schedules.set(schedule(name=name), bench.now_ms)
    bench.broker.schedules.delete("a", bench.now_ms)
    frozen = bench.broker.schedules.freeze()
    before = [*frozen["running"]], list(frozen["spent_ms"])
    bench.broker.schedules.delete("b", bench.now_ms)
    assert ([*frozen["running"]], list(frozen["spent_ms"])) == before
