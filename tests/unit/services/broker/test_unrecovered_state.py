"""What `unrecovered_state` lists is true of a broker, and of the one that starts on its disk it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

import pytest

from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.groups.lite_subscribing import LiteStart
from services.broker.schedules.schedule_values import Schedule
from services.broker.spine.errors import IllegalSchedule
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import DamagedPart, Effect, RetireSegments, Subscriber
from services.broker.unrecovered_state import UNRECOVERED_STATE
from tests.memory_disk import MemoryDisk
from txn.checkback import CheckBackPolicy

NOW_MS = 1_763_700_000_000
HOUR = 3_600_000
SEGMENT_BYTES = 8 * 1024
SETTINGS = BrokerSettings(
    segment_bytes=SEGMENT_BYTES,
    housekeeping_ms=1_000,
    check_back=CheckBackPolicy(immunity_ms=0),
    retention=RetentionPolicy(log_bytes_max=SEGMENT_BYTES, group_pin_ms=0),
)
CLIENT = Subscriber("g", "lite", "c")


class Bench:
    """A broker on a disk in memory."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.now_ms = NOW_MS
        self.broker = Broker.open(self.disk, SETTINGS, NOW_MS)
        self.broker.topics.create("lite", MessageType.LITE, 1, NOW_MS)
        every_minute = Schedule(name="s", cron="* * * * *", time_zone="UTC", topic="t", body=b"x")
        self.broker.schedules.set(every_minute, NOW_MS)
        self.send()

    def send(self, **attributes: object) -> str:
        message = Message(topic="t", body=b"x" * 500, message_id=f"M{self.broker.end_offset}")
        receipt = self.broker.sending.send(replace(message, **attributes), self.now_ms)
        self.flush()
        return receipt.transaction_id

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def tick(self, later_ms: int) -> list[Effect]:
        self.now_ms += later_ms
        return self.broker.tick(self.now_ms)

    def restart(self) -> None:
        self.flush()
        self.broker = Broker.open(self.disk, SETTINGS, self.now_ms)

    def have_no_producer(self) -> None:
        half = self.send(transactional=True)
        self.tick(1)
        self.broker.transactions.complete_check_back(half, False, self.now_ms)

    def lease(self) -> None:
        assert self.broker.receiving.receive("g", "t", EVERYTHING, 1, HOUR, "c", False, NOW_MS).deliveries

    def subscribe(self) -> None:
        self.broker.lite.subscribe(CLIENT, ["l"], LiteStart(), NOW_MS)

    def miss_runs(self) -> None:
        self.tick(0)
        self.tick(HOUR)

    def lose_the_time_zone(self) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(Schedule, "next_after", refuse)
            self.tick(HOUR)
            self.broker.schedules._request_computation(self.broker.schedules._by_name["s"])
            self.broker.schedules.pause("s", self.now_ms)
            self.broker.schedules.resume("s", self.now_ms)

    def wish(self) -> None:
        for _ in range(40):
            self.send()
        self.checkpoint()
        self.tick(1_000)

    def begin_to_retire(self) -> None:
        self.wish()
        self.flush()
        self.checkpoint()
        assert [one for one in self.tick(1_000) if isinstance(one, RetireSegments)]

    def checkpoint(self) -> None:
        checkpoint = self.broker.checkpoint(self.now_ms)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)


def refuse(schedule: Schedule, at_ms: int) -> int:
    raise IllegalSchedule("There is no such time zone any more.")


class Fact(NamedTuple):
    """How something comes to be true, and how that is seen."""

    do: Callable[[Bench], object]
    look: Callable[[Broker], object]


FACTS: Final = {
    "half that waits for a producer": Fact(
        Bench.have_no_producer, lambda broker: broker.transactions.waiting_check_backs.topics()
    ),
    "plain lease": Fact(Bench.lease, lambda broker: +broker.group_views.leased("g")),
    "subscription to lite topics": Fact(Bench.subscribe, lambda broker: broker.lite.lite_topics_of(CLIENT)),
    "missed runs decided about": Fact(
        Bench.miss_runs, lambda broker: broker.schedules._by_name["s"].cleared_ms
    ),
    "why a schedule cannot be computed": Fact(
        Bench.lose_the_time_zone, lambda broker: broker.schedules._by_name["s"].unreadable
    ),
    "retirement under way": Fact(Bench.begin_to_retire, lambda broker: broker.housekeeping._running),
    "wish for a second snapshot": Fact(Bench.wish, lambda broker: broker.housekeeping._requested_offset),
    "queue of the next message": Fact(
        Bench.send, lambda broker: [one.turn for one in broker.statistics.stored.values()]
    ),
    "jump of the clock": Fact(
        lambda bench: bench.broker.record_clock_jump(NOW_MS, NOW_MS + HOUR),
        lambda broker: broker._delivery._clock_until_ms or broker._lease_clock.to_broker_time(0),
    ),
    "damage that was found": Fact(
        lambda bench: bench.broker.damage.report(DamagedPart("log", "commitlog/0", "is damaged")),
        lambda broker: list(broker.damage),
    ),
    "statistics": Fact(
        Bench.send, lambda broker: {topic: one.messages for topic, one in broker.statistics.stored.items()}
    ),
}


def test_what_is_listed_is_tried_here() -> None:
    assert list(FACTS) == list(UNRECOVERED_STATE)


@pytest.mark.parametrize("name", FACTS)
def test_a_start_does_not_know_it_any_more(name: str) -> None:
    bench, fact = Bench(), FACTS[name]
    fact.do(bench)
    assert fact.look(bench.broker)
    bench.restart()
    assert not fact.look(bench.broker)
