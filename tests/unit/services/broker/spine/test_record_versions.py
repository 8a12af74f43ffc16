"""Tests that records which older nodes of a cluster do not support are written only from their version on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commitlog.applied_limits import OLDEST
from commitlog.facts.facts import TopicDeleted, TopicHeld, TopicReleased, TopicSet
from commitlog.records.kinds import TASK_TOPIC
from commitlog.records.message import Message, MessageType
from commitlog.records.record import Record
from services.broker.broker import Broker
from services.broker.spine import record_versions
from services.broker.spine.errors import VersionNotFinalized
from services.broker.spine.settings import BrokerSettings
from services.broker.timers.timer_records import is_held
from sharedlog.versions import SUPPORTED
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=1 << 16, queue_count=1)
CHANGES: dict[str, Callable[[Broker], object]] = {
    "hold": lambda broker: broker.topic_changes.hold("t", "why", NOW_MS),
    "delete": lambda broker: broker.topic_changes.delete("t", NOW_MS),
    "retention": lambda broker: broker.topic_changes.alter("t", None, None, NOW_MS, retention_ms=60_000),
}


def flush(broker: Broker) -> None:
    while taken := broker.take_flush():
        taken.write()
        broker.complete_flush(taken, NOW_MS)


def leader(version: int) -> Broker:
    """A broker that leads a cluster with a finalized version, and has a topic."""
    broker = Broker.open(MemoryDisk(), SETTINGS, NOW_MS)
    broker.epoch.raise_to(1, NOW_MS, "a", version)
    broker.topics.create("t", MessageType.MIXED, 1, NOW_MS)
    flush(broker)
    return broker


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_that_an_older_node_cannot_read_is_refused_and_changes_nothing(
    change: Callable[[Broker], object],
) -> None:
    broker = leader(OLDEST)
    end_offset = broker.end_offset
    with pytest.raises(VersionNotFinalized, match="requires version 4, and version 3") as refused:
        change(broker)
    assert "tidewheel cluster set-version" in str(refused.value)
    assert broker.end_offset == end_offset
    change(leader(record_versions.TOPIC_CHANGES))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_store_outside_a_cluster_has_no_older_readers(change: Callable[[Broker], object]) -> None:
    broker = Broker.open(MemoryDisk(), SETTINGS, NOW_MS)
    broker.topics.create("t", MessageType.MIXED, 1, NOW_MS)
    flush(broker)
    assert broker.store.version == OLDEST
    change(broker)
    assert broker.task_items.is_enabled


def test_what_an_older_node_can_read_is_never_refused() -> None:
    broker = leader(OLDEST)
    broker.sending.send(Message(topic="t", body=b"x", message_id="1"), NOW_MS)
    timer = Message(topic="t", body=b"x", message_id="2", delivery_ms=NOW_MS + 1_000)
    broker.sending.send(timer, NOW_MS)
    flush(broker)
    broker.topic_changes.purge("t", NOW_MS, discard=True)
    broker.topic_changes.alter("t", MessageType.DELAY, None, NOW_MS, retention_ms=0)
    assert not broker.task_items.is_enabled
    for one in broker.store.unflushed():
        assert not any(isinstance(fact, TopicDeleted | TopicHeld | TopicReleased) for fact in one.facts)
        assert not any(isinstance(fact, TopicSet) and fact.retention_ms for fact in one.facts)
        if isinstance(one.stored, Record):
            assert one.stored.topic != TASK_TOPIC
            assert not is_held(one.stored)


def test_a_newly_finalized_version_takes_effect_in_the_next_epoch() -> None:
    broker = leader(OLDEST)
    with pytest.raises(VersionNotFinalized):
        CHANGES["hold"](broker)
    broker.epoch.raise_to(2, NOW_MS, "b", SUPPORTED)
    CHANGES["hold"](broker)
    assert broker.topics.held == {"t"}


def test_this_program_supports_the_versions_that_its_records_require() -> None:
    assert OLDEST < record_versions.TOPIC_CHANGES <= SUPPORTED
    assert OLDEST < record_versions.TASK_ITEMS <= SUPPORTED
