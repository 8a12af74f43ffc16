"""Topics altered, purged and deleted: what is refused, what is gone, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from services.broker import topic_changes
from services.broker.broker import Broker
from services.broker.schedules.schedule_values import Schedule
from services.broker.spine.errors import TopicInUse, TopicNotFound
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery, Resolution, TimerName
from services.broker.topic_changes import GroupUse, TopicChange
from tests.memory_disk import MemoryDisk
from tests.simulation.tables import tables
from tidewheel.errors import ClientMistake, IllegalTopic, InvalidReceiptHandle

NOW_MS = 1_763_700_000_000
SCHEDULE = Schedule(name="nightly", cron="0 3 * * *", time_zone="UTC", topic="t", body=b"x")
SETTINGS = BrokerSettings(segment_bytes=1 << 16, queue_count=2)


class Bench:
    """A broker whose flushes are explicit."""

    def __init__(self) -> None:
        self.disk, self.now_ms, self.count = MemoryDisk(), NOW_MS, 0
        self.broker = Broker.open(self.disk, SETTINGS, self.now_ms)

    def send(self, topic: str = "t", **attributes: Any) -> str:
        """Send a message and flush; return its id or, for a half, its transaction."""
        self.count += 1
        message = Message(topic=topic, body=b"x", message_id=f"M{self.count}", **attributes)
        receipt = self.broker.sending.send(message, self.now_ms)
        self.flush()
        return receipt.transaction_id or receipt.message_id

    def flush(self) -> None:
        """Make durable what is appended."""
        while flush := self.broker.take_flush():
            flush.write()
            self.broker.complete_flush(flush, self.now_ms)

    def receive(self, group: str, topic: str = "t") -> list[Delivery]:
        """Receive all that there is, as leases."""
        found = self.broker.receiving.receive(group, topic, EVERYTHING, 32, 20_000, "c", False, self.now_ms)
        self.flush()
        return found.deliveries

    def ack(self, group: str, deliveries: list[Delivery]) -> None:
        """Acknowledge deliveries."""
        for one in deliveries:
            self.broker.receiving.ack(group, "t", one.receipt_handle, self.now_ms)
        self.flush()

    def change(self, verb: str, *arguments: Any, **named: Any) -> TopicChange:
        """Change topic t, and flush."""
        changed: TopicChange = getattr(self.broker.topic_changes, verb)("t", *arguments, self.now_ms, **named)
        self.flush()
        return changed

    def reopen(self) -> None:
        """Start again from what is on the disk."""
        self.broker = Broker.open(self.disk, SETTINGS, self.now_ms)
        self.flush()

    @property
    def is_there(self) -> bool:
        """Whether topic t exists."""
        return "t" in self.broker.topics


@pytest.fixture
def bench() -> Bench:
    """Return a broker with topic t of two queues, and a group on it."""
    bench = Bench()
    bench.broker.topics.create("t", MessageType.MIXED, 2, bench.now_ms)
    bench.broker.receiving.join("g", "t", bench.now_ms)
    bench.flush()
    return bench


def test_the_use_of_a_topic_counts_what_a_change_concerns(bench: Bench) -> None:
    for _ in range(5):
        bench.send()
    bench.ack("g", bench.receive("g")[:2])
    bench.send(delivery_ms=NOW_MS + 60_000)
    bench.send(transactional=True)
    bench.broker.schedules.set(SCHEDULE, bench.now_ms)
    bench.send("other", delivery_ms=NOW_MS + 60_000)
    bench.flush()

    use = bench.broker.topic_changes.describe_use("t")

    assert (use.messages, use.timers, use.halves, use.schedules) == (5, 1, 1, ["nightly"])
    assert (use.groups, use.unfinished) == ([GroupUse("g", 3, 0)], 3)
    with pytest.raises(TopicNotFound):
        bench.broker.topic_changes.describe_use("u")


def test_without_groups_every_message_is_unfinished(bench: Bench) -> None:
    bench.broker.group_views.delete("g", "", bench.now_ms)
    bench.send()
    assert bench.broker.topic_changes.describe_use("t").unfinished == 1
    with pytest.raises(TopicInUse, match="no group receives it"):
        bench.change("purge")


@pytest.mark.parametrize(
    ("begin", "end", "sentence"),
    [
        (
            lambda bench: bench.send(delivery_ms=NOW_MS + 60_000),
            lambda bench, name: bench.broker.timers.cancel(TimerName("t", name), "", bench.now_ms),
            r"1 timer \(tidewheel timer cancel",
        ),
        (
            lambda bench: bench.send(transactional=True),
            lambda bench, name: bench.broker.transactions.end(
                "t", name, f"M{bench.count}", Resolution.ROLLBACK, bench.now_ms
            ),
            r"1 open or expired half",
        ),
        (
            lambda bench: bench.broker.schedules.set(SCHEDULE, bench.now_ms).schedule.name,
            lambda bench, name: bench.broker.schedules.delete(name, bench.now_ms),
            "the schedule nightly",
        ),
    ],
)
def test_a_topic_with_timers_halves_or_schedules_is_not_deleted(
    bench: Bench, begin: Callable[[Bench], str], end: Callable[[Bench, str], object], sentence: str
) -> None:
    name = begin(bench)
    bench.flush()
    for _ in range(2):
        with pytest.raises(TopicInUse, match=sentence):
            bench.change("delete", discard=True)
        bench.reopen()
    end(bench, name)
    bench.flush()
    bench.change("delete", discard=True)
    assert not bench.is_there


def test_a_purge_discards_what_is_durable_and_no_more(bench: Bench) -> None:
    for _ in range(5):
        bench.send()
    bench.receive("g")
    with pytest.raises(TopicInUse, match=r"5 messages of 't' are unfinished: g \(5\)"):
        bench.change("purge")

    bench.change("purge", discard=True)
    kept = bench.send()

    for _ in range(2):
        assert bench.broker.topic_changes.describe_use("t").messages == 1
        bench.reopen()
    assert [one.message.message_id for one in bench.receive("g")] == [kept]
    assert bench.broker.group_views.view_group("g").missed == (), (
        "an operator discarded them, retention did not"
    )


def test_a_deleted_topic_is_gone_with_its_groups_and_a_new_one_begins_empty(bench: Bench) -> None:
    bench.send()
    held = bench.receive("g")

    changed = bench.change("delete", discard=True)

    assert changed.use.groups == [GroupUse("g", 1, 0)]
    for _ in range(2):
        assert not bench.is_there
        assert not bench.broker.groups.is_known("g")
        with pytest.raises(TopicNotFound):
            bench.change("delete")
        bench.reopen()
    bench.broker.topics.create("t", MessageType.MIXED, 2, bench.now_ms)
    bench.flush()
    assert bench.receive("g") == []
    sent = {bench.send() for _ in range(3)}
    found = bench.receive("g")
    assert {one.message.message_id for one in found} == sent
    assert {one.receipt_handle for one in found}.isdisjoint(one.receipt_handle for one in held)
    with pytest.raises(InvalidReceiptHandle):
        bench.ack("g", held)


def test_a_topic_is_not_deleted_while_its_messages_are_being_stored(bench: Bench) -> None:
    for attributes in ({}, {"transactional": True}):
        message = Message(topic="t", body=b"x", message_id="being stored", **attributes)
        bench.broker.sending.send(message, bench.now_ms)
        with pytest.raises(TopicInUse, match="are being stored"):
            bench.broker.topic_changes.delete("t", bench.now_ms, discard=True)
    assert bench.is_there


@pytest.mark.parametrize("name", ["%DLQ%g", "TW_SYS_TOPIC"])
def test_topics_of_the_broker_are_not_changed(bench: Bench, name: str) -> None:
    for verb, arguments in (("purge", ()), ("delete", ()), ("alter", (None, 3))):
        with pytest.raises(IllegalTopic):
            getattr(bench.broker.topic_changes, verb)(name, *arguments, bench.now_ms)


@pytest.mark.parametrize(("groups_max", "record_count"), [(1_000, 1), (1, 2), (0, 3)])
def test_a_deletion_takes_place_entirely_or_not_at_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, groups_max: int, record_count: int
) -> None:
    monkeypatch.setattr(topic_changes, "_GROUPS_MAX", groups_max)
    bench.broker.receiving.join("h", "t", bench.now_ms)
    for _ in range(4):
        bench.send()
    bench.broker.topic_changes.delete("t", bench.now_ms, discard=True)
    offsets = [one.offset for one in bench.broker.store.unflushed()]
    assert len(offsets) == record_count, "groups beyond the limit, and one record of all else"
    bench.flush()
    segment = bench.disk.list("commitlog")[0]
    whole, place = bench.disk.read(f"commitlog/{segment}", 0, SETTINGS.segment_bytes), offsets[-1]
    bench.reopen()
    assert not bench.is_there

    bench.disk.write(f"commitlog/{segment}", place, bytes(SETTINGS.segment_bytes - place))
    bench.reopen()
    assert bench.is_there
    use = bench.broker.topic_changes.describe_use("t")
    assert use.messages == 4
    assert len(use.groups) == min(2, groups_max)
    bench.disk.write(f"commitlog/{segment}", 0, whole)
    bench.reopen()
    assert not bench.is_there
    assert not bench.broker.groups.groups_of("t")
    bench.broker.topics.create("t", MessageType.MIXED, 2, bench.now_ms)
    assert bench.broker.topic_changes.describe_use("t").messages == 0


def test_a_start_comes_to_the_same_tables(bench: Bench) -> None:
    for _ in range(6):
        bench.send()
    bench.change("purge", discard=True)
    bench.send()
    bench.broker.topics.create("u", MessageType.NORMAL, 1, bench.now_ms)
    bench.change("delete", discard=True)
    bench.broker.topics.create("t", MessageType.MIXED, 3, bench.now_ms)
    bench.flush()
    bench.send()
    expected = tables(bench.broker)
    bench.reopen()
    assert tables(bench.broker) == expected


@pytest.mark.parametrize(
    ("old", "new", "is_possible"),
    [
        (MessageType.NORMAL, MessageType.MIXED, True),
        (MessageType.FIFO, MessageType.MIXED, True),
        (MessageType.MIXED, MessageType.DELAY, True),
        (MessageType.NORMAL, MessageType.FIFO, False),
        (MessageType.MIXED, MessageType.LITE, False),
        (MessageType.PRIORITY, MessageType.MIXED, False),
    ],
)
def test_a_type_changes_to_and_from_mixed(
    bench: Bench, old: MessageType, new: MessageType, is_possible: bool
) -> None:
    bench.change("delete")
    bench.broker.topics.create("t", old, 1, bench.now_ms)
    bench.flush()
    if not is_possible:
        with pytest.raises(ClientMistake, match=f"takes {old.value} and cannot take {new.value}"):
            bench.change("alter", new, None)
        new = old
    else:
        assert bench.change("alter", new, None).topic.message_type is new
    bench.reopen()
    assert bench.broker.topics.get("t").message_type is new


def test_a_type_that_would_shut_out_a_waiting_message_is_refused(bench: Bench) -> None:
    bench.send(delivery_ms=NOW_MS + 60_000)
    with pytest.raises(TopicInUse, match="1 timer "):
        bench.change("alter", MessageType.NORMAL, None)
    assert bench.change("alter", MessageType.DELAY, None).topic.message_type is MessageType.DELAY


def test_queues_are_added_once_no_message_group_can_be_disordered(bench: Bench) -> None:
    bench.send(message_group="a")
    with pytest.raises(TopicInUse, match="1 message of 't' is unfinished"):
        bench.change("alter", None, 3)
    bench.ack("g", bench.receive("g"))
    for queue_count, lost in ((1, ": the messages of a removed queue"), (1025, r"\.$")):
        with pytest.raises(ClientMistake, match=f"can get up to 1024, not {queue_count}{lost}"):
            bench.change("alter", None, queue_count)
    assert bench.change("alter", None, 3).topic.queue_count == 3
    sent = {bench.send() for _ in range(6)}
    bench.reopen()
    assert {one.message.message_id for one in bench.receive("g")} == sent
    assert bench.change("alter", None, 3).durable_at <= bench.broker.durable_offset, "unchanged"
