"""Messages in one call are what each would be alone: the same records, the same answers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.log.recovery import LogScan
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.broker import Broker
from services.broker.spine.errors import TooManyTimers
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import SendReceipt, TimerFilter, TimerName, Verdict
from tests.memory_disk import MemoryDisk
from tidewheel.errors import TidewheelError

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=8192, queue_count=2)

messages = st.builds(
    Message,
    topic=st.sampled_from(["a", "b", "no no", "ä"]),
    body=st.sampled_from([b"", b"x", b"\x02REAL_TOPIC\x01y\x02", bytes(2000)]),
    message_id=st.sampled_from([f"M{number}" for number in range(9)]),
    tag=st.sampled_from(["", "red", "a|b"]),
    keys=st.sampled_from([(), ("k",), ("k", "l m", "n", "o")]),
    message_group=st.sampled_from(["", "g"]),
    delivery_ms=st.sampled_from([None, -1, 0, NOW_MS - 5, NOW_MS, NOW_MS + 1, NOW_MS + 10**9, 1 << 62]),
    transactional=st.booleans(),
    properties=st.sampled_from(
        [
            {},
            {"colour": "blue"},
            {"TW_TIMER_KEY": "1"},
            {"TW_TIMER_KEY": "2"},
            {"TW_TIMER_KEY": "1", "TW_TIMER_UNIQUE": "true"},
            {"TW_TIMER_UNIQUE": "maybe"},
            {"TW_TIMER_CANCEL": "1"},
            {"TW_TIMER_KEY": "2", "TW_TIMER_FIRE": "M1"},
            {"REAL_TOPIC": "evil"},
        ]
    ),
    born_host=st.sampled_from([("127.0.0.1", 0), ("::1", 7)]),
    gzip=st.booleans(),
)


class Bench:
    """A broker on a disk in memory."""

    def __init__(self) -> None:
        self.disk, self.now_ms = MemoryDisk(), NOW_MS
        self.broker = Broker.open(self.disk, SETTINGS, self.now_ms)

    def alone(self, batch: list[Message]) -> list[SendReceipt | TidewheelError]:
        answers: list[SendReceipt | TidewheelError] = []
        for message in batch:
            try:
                answers.append(self.broker.sending.send(message, self.now_ms))
            except TidewheelError as error:
                answers.append(error)
        return answers

    def flush(self) -> None:
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def log(self) -> list[Record]:
        return [found.record for found in LogScan(self.disk, SETTINGS.segment_bytes)]


def told(answer: SendReceipt | TidewheelError) -> object:
    """What must be equal: everything but when a receipt may be given."""
    if isinstance(answer, SendReceipt):
        return answer._replace(durable_at=0)
    return type(answer), str(answer)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.lists(messages, max_size=12), st.booleans()), max_size=3))
def test_a_batch_is_what_its_messages_are_alone(batches: list[tuple[list[Message], bool]]) -> None:
    together, alone = Bench(), Bench()
    for batch, is_flushed in batches:
        expected = [told(answer) for answer in alone.alone(batch)]
        answers = together.broker.sending.send_many(batch, NOW_MS)
        assert [told(answer) for answer in answers] == expected
        assert all(
            one.physical_offset < one.durable_at <= together.broker.end_offset
            for one in answers
            if isinstance(one, SendReceipt)
        )
        for bench in (together, alone) if is_flushed else ():
            bench.flush()
    for bench in (together, alone):
        bench.flush()
    assert together.log() == alone.log()
    everything = TimerFilter()
    assert together.broker.timer_views.read_page(everything, None, 99) == alone.broker.timer_views.read_page(
        everything, None, 99
    )
    assert together.broker.gauges().pending_by_topic == alone.broker.gauges().pending_by_topic
    assert together.broker.statistics.stored == alone.broker.statistics.stored
    assert [together.broker.finding.find("a", f"M{number}", 9).messages for number in range(9)] == [
        alone.broker.finding.find("a", f"M{number}", 9).messages for number in range(9)
    ]


def timers(count: int, **attributes: object) -> list[Message]:
    made = [
        Message(topic="a", body=b"x", message_id=f"M{number}", delivery_ms=NOW_MS + 60_000 + number)
        for number in range(count)
    ]
    return [replace(one, **attributes) for one in made]


def test_a_timer_of_a_batch_is_cancelled_and_read_before_it_is_durable() -> None:
    bench = Bench()
    bench.broker.sending.send_many(timers(5), NOW_MS)
    assert bench.broker.timers.cancel(TimerName("a", "M2"), "", NOW_MS).verdict is Verdict.CANCELLED
    assert bench.broker.timers.move(TimerName("a", "M3"), NOW_MS + 7, NOW_MS).verdict is Verdict.MOVED
    bench.flush()
    waiting = bench.broker.timer_views.read_page(TimerFilter(), None, 9).timers
    assert [(one.message_id, one.due_ms - NOW_MS) for one in waiting] == [
        ("M3", 7),
        ("M0", 60_000),
        ("M1", 60_001),
        ("M4", 60_004),
    ]


def test_a_topic_takes_no_more_than_its_limit_in_one_batch() -> None:
    bench = Bench()
    bench.broker = Broker.open(bench.disk, replace(SETTINGS, timers_per_topic_max=3), NOW_MS)
    answers = bench.broker.sending.send_many(timers(5), NOW_MS)
    assert [type(one) for one in answers] == [SendReceipt] * 3 + [TooManyTimers] * 2
