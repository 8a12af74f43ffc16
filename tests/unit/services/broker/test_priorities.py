"""Messages with a priority: which queue they get, what is stored, and what is refused."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from commitlog.records import properties
from commitlog.records.message import Message, MessageType
from commitlog.records.record import Record
from services.broker.broker import Broker
from services.broker.spine.errors import IllegalProperty, MessageTypeConflict
from services.broker.spine.settings import BrokerSettings
from tests.memory_disk import MemoryDisk
from tidewheel import property_names
from tidewheel.errors import ClientMistake

NOW_MS = 1_763_700_000_000


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def broker(disk: MemoryDisk) -> Broker:
    opened = Broker.open(disk, BrokerSettings(segment_bytes=1 << 16), NOW_MS)
    opened.topics.create("jobs", MessageType.PRIORITY, 4, NOW_MS)
    return opened


NUMBERS = count()


def message(topic: str = "jobs", **more: Any) -> Message:
    return Message(topic=topic, body=b"x", message_id=f"M{next(NUMBERS)}", born_ms=NOW_MS, **more)


@pytest.mark.parametrize(("priority", "queue_id"), [(0, 0), (1, 1), (3, 3), (4, 3), (2_000_000_000, 3)])
def test_the_priority_is_the_queue_as_far_as_there_are_queues(
    broker: Broker, disk: MemoryDisk, priority: int, queue_id: int
) -> None:
    for _ in range(2):
        broker.sending.send(message(priority=priority), NOW_MS)
    while flush := broker.take_flush():
        flush.write()
        broker.complete_flush(flush, NOW_MS)
    stored = broker.finding.read("jobs", queue_id, 0, 10)
    assert [one.message.priority for one in stored] == [priority, priority]
    assert {one.message.message_type for one in stored} == {MessageType.PRIORITY}
    assert stored[0].message.properties == {}


def test_it_is_stored_under_the_name_that_rocketmq_gives_it() -> None:
    assert properties.value_of(properties.encode_message(message(priority=0)), "_SYS_MSG_PRIORITY_") == "0"
    assert b"_SYS_MSG_PRIORITY_" not in properties.encode_message(message())


@pytest.mark.parametrize("stored", ["", "-1", "x", "1.5", "9" * 5_000, "2147483648", "\u00b2"])
def test_a_stored_priority_that_is_none_is_left_out(stored: str) -> None:
    record = Record(topic="jobs", body=b"x", properties=properties.encode({property_names.PRIORITY: stored}))
    assert properties.to_message(record).priority is None


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (message(), "'jobs' takes PRIORITY messages, this one is NORMAL"),
        (message(message_group="g"), "this one is FIFO"),
        (message(priority=1, message_group="g"), "A FIFO message cannot have a priority too"),
        (message(priority=1, delivery_ms=NOW_MS + 1), "A DELAY message cannot have a priority too"),
        (message(priority=1, transactional=True), "A TRANSACTION message cannot have a priority too"),
        (message(topic="mixed", priority=1), "'mixed' takes every type but PRIORITY.*--type priority"),
        (message(topic="plain", priority=1), "'plain' takes NORMAL messages, this one is PRIORITY"),
    ],
)
def test_what_does_not_go_with_a_priority_is_refused(broker: Broker, sent: Message, why: str) -> None:
    broker.topics.create("plain", MessageType.NORMAL, 1, NOW_MS)
    with pytest.raises(MessageTypeConflict, match=why):
        broker.sending.send(sent, NOW_MS)


def test_a_priority_below_zero_is_refused(broker: Broker) -> None:
    with pytest.raises(ClientMistake, match="counts from 0"):
        broker.sending.send(message(priority=-1), NOW_MS)


def test_its_property_cannot_be_set_by_hand(broker: Broker) -> None:
    with pytest.raises(IllegalProperty):
        broker.sending.send(message(priority=1, properties={"_SYS_MSG_PRIORITY_": "9"}), NOW_MS)
