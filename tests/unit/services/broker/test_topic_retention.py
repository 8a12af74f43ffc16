"""Topics with a retention of their own: what falls out at once and later, what groups miss, and crashes."""

from __future__ import annotations

import pytest

from commitlog.records.message import MessageType
from services.broker.spine.errors import TopicInUse
from services.broker.topic_retention import QUEUES_MAX, ExpiredMessages
from tests.simulation.tables import tables
from tests.unit.services.broker.test_topic_changes import SETTINGS, Bench
from tidewheel.errors import ClientMistake

HOUR_MS = 3_600_000


@pytest.fixture
def bench() -> Bench:
    """Return a broker with topic t of two queues, with six messages, an hour apart, and a group on it."""
    bench = Bench()
    bench.broker.topics.create("t", MessageType.MIXED, 2, bench.now_ms)
    bench.broker.receiving.join("g", "t", bench.now_ms)
    for _ in range(6):
        bench.send()
        bench.now_ms += HOUR_MS
    return bench


def kept(bench: Bench, topic: str = "t") -> list[str]:
    """Return the ids of the messages in the queues of a topic, by age."""
    found = []
    for queue_id in range(bench.broker.topics.get(topic).queue_count):
        first, end = bench.broker.finding.queue_range(topic, queue_id)
        found += bench.broker.finding.read(topic, queue_id, first, end - first)
    return [one.message.message_id for one in sorted(found, key=lambda one: one.physical_offset)]


def pass_time(bench: Bench, ms: int) -> None:
    """Let time pass, then do all that is due."""
    bench.now_ms += ms
    while (due_ms := bench.broker.next_due_ms()) is not None and due_ms <= bench.now_ms:
        bench.broker.tick(bench.now_ms)
        bench.flush()


def test_a_retention_discards_what_is_too_old_at_once_and_says_how_much(bench: Bench) -> None:
    assert bench.broker.topic_changes.expired("t", 3 * HOUR_MS, bench.now_ms) == ExpiredMessages(3, 3)
    bench.ack("g", [one for one in bench.receive("g") if one.message.message_id in ("M1", "M2")])
    assert bench.broker.topic_changes.expired("t", 3 * HOUR_MS, bench.now_ms) == ExpiredMessages(3, 1)
    with pytest.raises(TopicInUse, match=r"3 messages of .* older .*, 1 of them unfinished"):
        bench.change("alter", None, None, retention_ms=3 * HOUR_MS)
    assert len(kept(bench)) == 6
    changed = bench.change("alter", None, None, retention_ms=3 * HOUR_MS, discard=True)
    assert (changed.topic.retention_ms, changed.expired) == (3 * HOUR_MS, ExpiredMessages(3, 1))
    assert kept(bench) == ["M4", "M5", "M6"]
    missed = bench.broker.groups.missed_messages.find("g", "t")
    assert missed is not None
    assert missed.message_count == 1


def test_nothing_falls_out_before_its_age_and_all_of_it_soon_after(bench: Bench) -> None:
    bench.change("alter", None, None, retention_ms=10 * HOUR_MS)
    assert len(kept(bench)) == 6
    pass_time(bench, 4 * HOUR_MS)  # M1 has exactly this age
    assert len(kept(bench)) == 6
    for number in range(1, 6):
        pass_time(bench, SETTINGS.housekeeping_ms)
        assert kept(bench)[0] == f"M{number + 1}"
        pass_time(bench, HOUR_MS - SETTINGS.housekeeping_ms)
    pass_time(bench, HOUR_MS)
    assert kept(bench) == []
    assert [one.message.message_id for one in bench.receive("g")] == []
    end_offset = bench.broker.end_offset
    pass_time(bench, HOUR_MS)
    assert bench.broker.end_offset == end_offset, "nothing is recorded where nothing falls out"
    assert bench.broker.housekeeping.missed_reports == []


def test_messages_that_a_group_holds_fall_out_as_well(bench: Bench) -> None:
    leases = bench.receive("g")
    assert len(leases) == 6
    bench.change("alter", None, None, retention_ms=HOUR_MS, discard=True)
    assert kept(bench) == ["M6"]
    bench.reopen()
    assert kept(bench) == ["M6"]
    bench.send()
    assert kept(bench) == ["M6", "M7"]


def test_a_start_and_a_snapshot_have_the_retention(bench: Bench) -> None:
    bench.change("alter", None, None, retention_ms=2 * HOUR_MS, discard=True)
    before = tables(bench.broker)
    bench.reopen()
    assert tables(bench.broker) == before
    checkpoint = bench.broker.checkpoint(bench.now_ms)
    checkpoint.write(bench.disk)
    bench.broker.complete_checkpoint(checkpoint)
    bench.reopen()
    assert bench.broker.topics.get("t").retention_ms == 2 * HOUR_MS
    assert [*bench.broker.topics.with_retention] == ["t"]
    pass_time(bench, 2 * HOUR_MS)
    assert kept(bench) == []
    bench.change("alter", None, None, retention_ms=0)
    assert not bench.broker.topics.with_retention
    bench.send()
    pass_time(bench, 9 * HOUR_MS)
    assert kept(bench) == ["M7"]


def test_a_deleted_topic_has_no_retention(bench: Bench) -> None:
    bench.change("alter", None, None, retention_ms=HOUR_MS, discard=True)
    bench.change("delete", discard=True)
    assert not bench.broker.topics.with_retention
    pass_time(bench, HOUR_MS)
    bench.send()
    pass_time(bench, 9 * HOUR_MS)
    assert kept(bench) == ["M7"]


def test_other_settings_leave_the_retention_and_lose_nothing_in_silence(bench: Bench) -> None:
    bench.change("alter", None, None, retention_ms=20 * HOUR_MS)
    changed = bench.change("alter", MessageType.NORMAL, None)
    assert changed.topic.retention_ms == 20 * HOUR_MS
    bench.broker.topics.set_check_back("t", None, bench.now_ms)
    assert bench.broker.topics.get("t").retention_ms == 20 * HOUR_MS


def test_a_tick_checks_some_queues_and_the_next_ones_the_others(bench: Bench) -> None:
    bench.broker.topics.create("wide", MessageType.NORMAL, 3 * QUEUES_MAX, bench.now_ms)
    for _ in range(3 * QUEUES_MAX):
        bench.send("wide")
    bench.broker.topic_changes.alter("wide", None, None, bench.now_ms, retention_ms=HOUR_MS)
    bench.now_ms += HOUR_MS + 1
    bench.broker.topic_retention.begin()
    for left in (2, 1, 0):
        bench.broker.topic_retention.advance(bench.now_ms)
        bench.flush()
        assert len(kept(bench, "wide")) == left * QUEUES_MAX
        assert bench.broker.topic_retention.has_more is (left > 0)


@pytest.mark.parametrize("retention_ms", [1, 999, -1, 1 << 60])
def test_a_retention_has_bounds(bench: Bench, retention_ms: int) -> None:
    with pytest.raises(ClientMistake, match="A retention lies between"):
        bench.change("alter", None, None, retention_ms=retention_ms)
