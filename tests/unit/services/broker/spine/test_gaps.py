"""Whoever passes over a gap of a queue, which damage of the log has left, tells of it once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commitlog import layout, limits
from commitlog.log.recovery import Damage
from commitlog.records.message import Message, MessageType
from consumequeue.entry import Entry
from consumequeue.filters.filter import EVERYTHING, Filter, parse_tags
from consumequeue.filters.sql_filter import parse_sql
from consumequeue.queue import ConsumeQueue
from services.broker.broker import Broker
from services.broker.groups.lite_subscribing import LiteStart
from services.broker.spine.finding import MessageLookup
from services.broker.spine.values import Subscriber
from tests.unit.services.broker.timers.test_timers import Store

SQL = parse_sql("TAGS = 'a'")
LOG = layout.segment_path(0)
LONG = 400
Look = Callable[[MessageLookup, int], object]


def sent(tags: str, *, lite_topics: bool = False) -> tuple[Store, list[int]]:
    """Return a store with messages of these tags, or lite topics, and where in the log each begins."""
    store = Store(segment_bytes=1 << 20)
    store.broker.topics.create("t", MessageType.LITE if lite_topics else MessageType.NORMAL, 1, store.now_ms)
    store.flush()
    places = list[int]()
    for number, tag in enumerate(tags):
        places.append(store.broker.end_offset)
        named = {"lite_topic": tag} if lite_topics else {"tag": tag}
        message = Message(topic="t", body=b"x" * 300, message_id=f"M{number}", **named)  # type: ignore[arg-type]
        store.broker.sending.send(message, store.now_ms)
        store.flush()
    store.broker.store.dispatch.write()
    store.checkpoint()
    return store, places


def lose(store: Store, places: list[int], *, starts: int = 2) -> None:
    """Damage records; let a start make the queues anew, and a later one know nothing of the damage."""
    for place in places:
        store.disk.flip_bit(LOG, 8 * (place + 100))
    for number in range(starts):
        if number == 0:
            store.disk.delete(layout.QUEUES_WHOLE)
        store.disk.kill(lambda _: 0)
        store.broker = Broker.open(store.disk, store.settings, store.now_ms)
        store.checkpoint()


def received(store: Store, wanted: Filter, group: str = "g") -> list[str]:
    """Return the ids of what a group receives, until nothing comes and it has looked at everything."""
    ids = list[str]()
    while True:
        found = store.broker.receiving.receive(group, "t", wanted, 32, 20_000, "c", False, store.now_ms)
        ids += [one.message.message_id for one in found.deliveries]
        if not (found.deliveries or found.is_unfinished):
            return ids
        store.flush()


def told(store: Store) -> list[str]:
    return [one.part for one in store.broker.damage]


@pytest.mark.parametrize("wanted", [EVERYTHING, parse_tags("a"), SQL], ids=["everything", "tag", "sql"])
@pytest.mark.parametrize(("starts", "part"), [(0, "log"), (2, "gap")])
def test_a_group_hears_of_a_message_that_damage_took(wanted: Filter, starts: int, part: str) -> None:
    store, places = sent("aaaa")
    lose(store, [places[1]], starts=starts)
    assert not told(store)
    for group in ("g", "h"):
        assert received(store, wanted, group) == ["M0", "M2", "M3"]
    assert told(store) == [part]


def test_a_group_hears_of_a_lost_message_though_nothing_else_matches_its_tag() -> None:
    store, places = sent("bbbb")
    lose(store, [places[1]])
    assert received(store, parse_tags("a")) == []
    assert told(store) == ["gap"]


def test_a_group_hears_of_a_lost_message_of_a_lite_topic() -> None:
    store, places = sent("aabbab", lite_topics=True)
    lose(store, [places[1], places[2], places[4]])
    for group in ("g", "h"):
        store.broker.lite.subscribe(Subscriber(group, "t", "c"), ["a", "b"], LiteStart(), store.now_ms)
        assert received(store, EVERYTHING, group) == ["M0", "M3"]
    assert told(store) == ["gap", "gap"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([EVERYTHING, parse_tags("a"), parse_tags("c"), SQL]),
)
@example([("a", False), ("b", True), ("b", True), ("a", False), ("a", True)], parse_tags("a"))
def test_each_gap_is_told_once_by_whichever_filter(messages: list[tuple[str, bool]], wanted: Filter) -> None:
    tags = "".join(tag for tag, _ in messages)
    is_lost = [lost for _, lost in messages]
    store, places = sent(tags)
    lose(store, [place for place, lost in zip(places, is_lost, strict=True) if lost])
    matching = {EVERYTHING: "ab", parse_tags("c"): ""}.get(wanted, "a")
    kept = [f"M{at}" for at, tag in enumerate(tags) if not is_lost[at] and tag in matching]
    assert received(store, wanted) == kept
    assert told(store) == ["gap"] * sum(lost for lost, _ in groupby(is_lost))


@pytest.mark.parametrize("from_log", [False, True], ids=["behind a snapshot", "from the log alone"])
@pytest.mark.parametrize("stood_before", [False, True], ids=["new group", "group that stood before"])
def test_a_group_hears_that_damage_took_the_first_messages_of_a_new_queue(
    stood_before: bool, from_log: bool
) -> None:
    """No snapshot had the queue. It began behind the damage, and its file of before did not fit."""
    store = Store(segment_bytes=1 << 20)
    store.broker.topics.create("t", MessageType.NORMAL, 1, store.now_ms)
    if stood_before:
        assert received(store, EVERYTHING) == []
    store.flush()
    if not from_log:
        store.checkpoint()
    places = [store.send(f"M{number}", None) for number in range(3)]
    store.send("N0", None)
    store.broker.store.dispatch.write()
    for place in places:
        store.disk.flip_bit(LOG, 8 * (place + 100))
    for _ in range(2):
        store.disk.kill(lambda _: 0)
        store.broker = Broker.open(store.disk, store.settings, store.now_ms)
        store.checkpoint()
    assert not told(store)
    assert received(store, EVERYTHING) == ["N0"]
    assert told(store) == ["gap"]


def test_a_gap_is_told_though_other_damage_before_it_is_known() -> None:
    """That of a record behind a snapshot of before, say, which the background check has found."""
    store, places = sent("aaaa")
    lose(store, [places[2]])
    store.broker.damage.report_log_range(Damage(places[0] - 9, places[0]))
    store.broker.damage.report_log_range(Damage(places[3] + 9, places[3] + 99))
    assert received(store, EVERYTHING) == ["M0", "M1", "M3"]
    assert told(store) == ["log", "log", "gap"]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_group_hears_of_the_first_messages_that_a_queue_made_anew_lacks(lost: int) -> None:
    store, places = sent("aaa")
    lose(store, places[:lost])
    assert received(store, EVERYTHING) == ["M0", "M1", "M2"][lost:]
    assert told(store) == ["gap"]
    assert store.broker.groups.missed_messages.find("g", "t") is None


@pytest.mark.parametrize("wanted", [EVERYTHING, parse_tags("a")], ids=["everything", "tag"])
def test_a_long_gap_costs_a_receive_one_look(wanted: Filter) -> None:
    count = 2 * limits.SCANNED_PER_RECEIVE_MAX
    store, places = sent("a" * (count + 2))
    lose(store, places[1:-1])
    found = store.broker.receiving.receive("g", "t", wanted, 32, 20_000, "c", False, store.now_ms)
    assert [one.message.message_id for one in found.deliveries] == ["M0", f"M{count + 1}"]
    assert found.work < 10
    assert told(store) == ["gap"]


@pytest.fixture
def entries_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the entries that were read one by one."""
    offsets = list[int]()
    entry = ConsumeQueue.entry

    def counted(queue: ConsumeQueue, queue_offset: int) -> Entry:
        offsets.append(queue_offset)
        return entry(queue, queue_offset)

    monkeypatch.setattr(ConsumeQueue, "entry", counted)
    return lambda: len(offsets)


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (lambda finding, now_ms: finding.offset_at("t", 0, now_ms - 1), 1),
        (lambda finding, now_ms: finding.offset_at("t", 0, now_ms), 1),
        (lambda finding, now_ms: finding.offset_at("t", 0, now_ms + 1), LONG + 2),
        (
            lambda finding, _: [one.queue_offset for one in finding.read_after("t", {0: 0}, 9).messages],
            [0, LONG + 1],
        ),
    ],
    ids=["before the gap", "in the gap", "at the end", "tail"],
)
def test_a_look_steps_over_a_long_gap_at_once(
    look: Look, expected: object, entries_read: Callable[[], int]
) -> None:
    """It went through each of the lost messages, within one turn of the loop."""
    store, places = sent("a" * (LONG + 1))
    store.now_ms += 1_000
    places.append(store.broker.end_offset)
    store.send("last", None)
    lose(store, places[1:-1])
    before = entries_read()
    assert look(store.broker.finding, store.now_ms) == expected
    assert entries_read() - before < LONG // 4
    assert told(store) == ["gap"]


def test_a_page_of_dead_letters_steps_over_a_long_gap_at_once(entries_read: Callable[[], int]) -> None:
    store, _ = sent("a" * (LONG + 2))
    receiving = store.broker.receiving
    for _ in range(LONG + 2):
        (one,) = receiving.receive("g", "t", EVERYTHING, 1, 20_000, "c", False, store.now_ms).deliveries
        receiving.forward_to_dead_letter("g", "t", one.receipt_handle, store.now_ms)
        store.flush()
    store.checkpoint()
    queue = store.broker.store.dispatch.find_queue("%DLQ%g", 0)
    places = [one.physical_offset for one in queue.get(0, LONG + 2)]
    lose(store, places[1:-1])
    before = entries_read()
    page = store.broker.dead_letters.read_page("g", None, 9)
    assert [one.queue_offset for one in page.dead_letters] == [0, LONG + 1]
    assert entries_read() - before < LONG // 4
    assert told(store) == ["gap"]


@pytest.mark.parametrize(
    "look",
    [
        lambda finding, _: finding.read("t", 0, 0, 9),
        lambda finding, _: finding.read_after("t", {0: 0}, 9),
        lambda finding, now_ms: finding.offset_at("t", 0, now_ms),
    ],
    ids=["messages", "tail", "time"],
)
def test_a_look_or_a_search_by_time_tells_of_the_gap_that_it_passes(look: Look) -> None:
    store, places = sent("aaaa")
    lose(store, [places[1]])
    for _ in range(2):
        look(store.broker.finding, store.now_ms)
    assert told(store) == ["gap"]
