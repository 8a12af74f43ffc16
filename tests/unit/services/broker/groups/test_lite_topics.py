"""Lite topics, verb by verb: who gets which messages, in which order, and what a restart keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import parse_tags
from services.broker.broker import Broker
from services.broker.groups.group_values import GroupPolicy, GroupStart
from services.broker.groups.lite_subscribing import LiteStart, LiteStartPosition, SubscriptionResult
from services.broker.groups.lite_topics import queue_of
from services.broker.spine.errors import (
    IllegalLiteTopic,
    IllegalProperty,
    MessageTypeConflict,
    TooManyLiteSubscriptions,
    TooManyLiteTopics,
)
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Delivery, StartPosition, Subscriber
from tests.flushed_broker import NOW_MS, FlushedBroker
from tests.unit.services.broker.test_retention import Asked
from tests.unit.services.woken import woken
from tidewheel.errors import ClientMistake, InvalidReceiptHandle

SETTINGS = BrokerSettings(segment_bytes=1 << 20, attempts_max=2, queue_count=2)


class Bench(FlushedBroker):
    """A broker with a topic of lite topics, everything flushed after each call."""

    def __init__(self, settings: BrokerSettings = SETTINGS) -> None:
        super().__init__(settings)
        self.broker.topics.create("t", MessageType.LITE, settings.queue_count, self.now_ms)
        self.flush()

    def send(self, lite_topic: str, **attributes: object) -> str:
        self.count += 1
        given = {"topic": "t", "body": b"x", "message_id": f"M{self.count}", "lite_topic": lite_topic}
        self.broker.sending.send(Message(**given | attributes), self.now_ms)
        self.effects = self.flush()
        return f"M{self.count}"

    def subscribe(
        self,
        *lite_topics: str,
        client: str = "c",
        group: str = "g",
        start: LiteStartPosition = LiteStartPosition.LAST,
        at: int = 0,
    ) -> SubscriptionResult:
        who = Subscriber(group, "t", client)
        subscribed = self.broker.lite.subscribe(who, list(lite_topics), LiteStart(start, at), self.now_ms)
        self.flush()
        assert self.broker.durable_offset >= subscribed.durable_at
        return subscribed

    def replace(self, *lite_topics: str, client: str = "c", group: str = "g") -> SubscriptionResult:
        return self.broker.lite.replace(Subscriber(group, "t", client), list(lite_topics), self.now_ms)

    def receive(self, client: str = "c", group: str = "g", batch: int = 32, **more: object) -> list[Delivery]:
        options = {
            "topic_name": more.pop("topic", "t"),
            "invisible_ms": 20_000,
            "client_id": client,
            "auto_renew": False,
        } | more
        received = self.broker.receiving.receive(
            group=group, wanted=parse_tags("*"), batch_size=batch, now_ms=self.now_ms, **options
        )
        self.flush()
        assert self.broker.durable_offset >= received.durable_at
        return received.deliveries

    def ids(self, *arguments: object, **options: object) -> list[str]:
        return [one.message.message_id for one in self.receive(*arguments, **options)]

    def ack(self, delivery: Delivery, group: str = "g") -> list[object]:
        self.broker.receiving.ack(group, delivery.message.topic, delivery.receipt_handle, self.now_ms)
        return self.flush()

    def finish(self, client: str = "c", group: str = "g") -> list[str]:
        """Receives and acknowledges until nothing comes."""
        ids: list[str] = []
        while got := self.receive(client, group):
            for one in got:
                self.ack(one, group)
                ids.append(one.message.message_id)
        return ids

    def lag(self, group: str = "g") -> int:
        return sum(queue.lag for queue in self.broker.group_views.view_group(group).queues)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Who gets what.


def test_a_client_gets_the_messages_of_its_lite_topics_and_no_others(bench: Bench) -> None:
    mine, _, also_mine = bench.send("a"), bench.send("b"), bench.send("c")
    bench.subscribe("a", "c")
    assert sorted(bench.finish()) == [mine, also_mine]
    assert bench.lag() == 1


def test_a_client_that_has_not_subscribed_gets_nothing_and_loses_nothing(bench: Bench) -> None:
    sent = bench.send("a")
    assert bench.receive() == []
    bench.subscribe("a")
    assert bench.ids() == [sent]


def test_messages_of_a_lite_topic_come_one_at_a_time_and_in_order(bench: Bench) -> None:
    sent = [bench.send("a") for _ in range(4)]
    bench.subscribe("a")
    for message_id in sent:
        (got,) = bench.receive()
        assert got.message.message_id == message_id
        assert (got.message.lite_topic, got.message.message_type) == ("a", MessageType.LITE)
        assert bench.receive() == []
        bench.ack(got)
    assert bench.receive() == []


def test_a_policy_may_allow_runs(bench: Bench) -> None:
    bench.broker.group_views.set_policy("g", GroupPolicy(fifo_run_max=2), NOW_MS)
    sent = [bench.send("a") for _ in range(3)]
    other = bench.send("b")
    bench.subscribe("a", "b")
    got = bench.receive()
    assert [one.message.message_id for one in got] == [*sent[:2], other]
    bench.ack(got[0])
    assert bench.receive() == []
    bench.ack(got[1])
    assert bench.ids() == sent[2:]


def test_two_groups_each_get_everything(bench: Bench) -> None:
    sent = [bench.send("a") for _ in range(3)]
    bench.subscribe("a")
    bench.subscribe("a", group="h")
    assert bench.finish() == sent == bench.finish(group="h")


def test_clients_of_a_group_that_share_a_lite_topic_take_turns(bench: Bench) -> None:
    sent = [bench.send("a") for _ in range(2)]
    bench.subscribe("a", client="c")
    bench.subscribe("a", client="d")
    (first,) = bench.receive("c")
    assert bench.receive("d") == []
    assert Subscriber("g", "t", "d") in woken(bench.ack(first))
    assert bench.ids("d") == sent[1:]


def test_a_full_batch_leaves_the_other_lite_topics_for_the_next_receive(bench: Bench) -> None:
    sent = {bench.send(f"lite-{number}") for number in range(50)}
    bench.subscribe(*(f"lite-{number}" for number in range(50)))
    first, second = bench.ids(), bench.ids()
    assert (len(first), len(second)) == (32, 18)
    assert {*first, *second} == sent


def test_a_filter_still_lets_only_its_tags_through(bench: Bench) -> None:
    bench.send("a", tag="x")
    wanted = bench.send("a", tag="y")
    bench.subscribe("a")
    received = bench.broker.receiving.receive("g", "t", parse_tags("y"), 32, 20_000, "c", False, NOW_MS)
    assert [one.message.message_id for one in received.deliveries] == [wanted]


# Subscriptions.


def test_what_is_unsubscribed_stays_for_whoever_subscribes_next(bench: Bench) -> None:
    bench.subscribe("a")
    bench.broker.lite.unsubscribe(Subscriber("g", "t", "c"), ["a", "never-subscribed"], NOW_MS)
    sent = bench.send("a")
    assert bench.receive() == []
    bench.subscribe("a", client="d")
    assert bench.ids("d") == [sent]


def test_the_whole_set_replaces_what_was_subscribed(bench: Bench) -> None:
    bench.subscribe("a", "b")
    bench.replace("b", "c")
    assert bench.broker.lite.lite_topics_of(Subscriber("g", "t", "c")) == ["b", "c"]
    bench.broker.lite.remove_all(Subscriber("g", "t", "c"), NOW_MS)
    assert bench.broker.lite.lite_topics_of(Subscriber("g", "t", "c")) == []
    bench.send("b")
    assert bench.receive() == []


def test_a_client_that_says_goodbye_subscribes_to_nothing(bench: Bench) -> None:
    bench.subscribe("a")
    bench.broker.lite.remove_client("c", NOW_MS)
    bench.send("a")
    assert bench.receive() == []


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
def test_a_client_that_receives_after_a_step_of_the_clock_is_heard_from_then(
    bench: Bench, by_ms: int
) -> None:
    """A receive noted the system clock where elapsed time is kept."""
    bench.subscribe("a", client="c")
    bench.broker.record_clock_jump(bench.now_ms, bench.now_ms + by_ms)
    bench.now_ms += by_ms
    bench.receive("c")
    subscriber = Subscriber("g", "t", "c")
    bench.broker.lite.run_maintenance(bench.now_ms + limits.LITE_SILENT_MS_MAX)
    assert bench.broker.lite.lite_topics_of(subscriber) == ["a"]
    bench.broker.lite.run_maintenance(bench.now_ms + limits.LITE_SILENT_MS_MAX + 1)
    assert bench.broker.lite.lite_topics_of(subscriber) == []


def test_a_client_that_is_silent_for_long_is_forgotten_and_one_that_is_heard_is_not(bench: Bench) -> None:
    bench.subscribe("a", client="silent")
    bench.subscribe("a", client="heard")
    bench.advance(limits.LITE_SILENT_MS_MAX)
    bench.broker.receiving.renew_client("heard", bench.now_ms)
    bench.advance(2 * bench.settings.housekeeping_ms)
    assert bench.broker.lite.lite_topics_of(Subscriber("g", "t", "silent")) == []
    assert bench.broker.lite.lite_topics_of(Subscriber("g", "t", "heard")) == ["a"]


def test_only_those_who_subscribed_are_woken(bench: Bench) -> None:
    bench.subscribe("a", client="c")
    bench.subscribe("b", client="d")
    bench.send("nobodys")
    bench.send("a")
    assert woken(bench.effects) == {"t", Subscriber("g", "t", "c")}


def test_in_an_exclusive_group_the_last_to_subscribe_takes_a_lite_topic_over(bench: Bench) -> None:
    bench.broker.group_views.set_policy("g", GroupPolicy(is_lite_exclusive=True), NOW_MS)
    bench.subscribe("a", "b", client="old")
    sent = bench.send("a")
    assert bench.subscribe("a", client="new").lost == [("old", "a")]
    assert bench.receive("old") == []
    assert bench.ids("new") == [sent]


def test_in_an_exclusive_group_saying_the_whole_set_again_takes_nothing_back(bench: Bench) -> None:
    bench.broker.group_views.set_policy("g", GroupPolicy(is_lite_exclusive=True), NOW_MS)
    bench.subscribe("a", "b", client="old")
    bench.subscribe("a", client="new")
    assert bench.replace("a", "b", client="old").lost == [("old", "a")]
    assert bench.broker.lite.lite_topics_of(Subscriber("g", "t", "old")) == ["b"]
    bench.broker.lite.remove_client("new", NOW_MS)
    assert bench.replace("a", "b", client="old").lost == []
    assert bench.broker.lite.lite_topics_of(Subscriber("g", "t", "old")) == ["b", "a"]


# Leases.


def test_a_lease_that_ran_out_brings_the_message_again_before_the_later_ones(bench: Bench) -> None:
    first, second = bench.send("a"), bench.send("a")
    bench.subscribe("a")
    assert bench.ids() == [first]
    effects = bench.advance(20_000)
    assert Subscriber("g", "t", "c") in woken(effects)
    (again,) = bench.receive()
    assert (again.message.message_id, again.attempt) == (first, 2)
    bench.ack(again)
    assert bench.ids() == [second]


def test_after_its_last_attempt_a_message_is_a_dead_letter_and_the_next_comes(bench: Bench) -> None:
    first, second = bench.send("a"), bench.send("a")
    bench.subscribe("a")
    for _ in range(2):
        assert bench.ids() == [first]
        bench.advance(20_000)
    assert bench.ids() == [second]
    (dead_letter,) = bench.broker.dead_letters.read_page("g", None, 10).dead_letters
    assert (dead_letter.message.message_id, dead_letter.message.lite_topic) == (first, "a")


def test_a_redriven_dead_letter_comes_back_in_its_lite_topic_to_its_group_alone(bench: Bench) -> None:
    sent = bench.send("a")
    for group in ("g", "h"):
        bench.subscribe("a", group=group)
    (got,) = bench.receive()
    bench.broker.receiving.forward_to_dead_letter("g", "t", got.receipt_handle, NOW_MS)
    assert bench.finish(group="h") == [sent]
    bench.broker.dead_letters.redrive("g", 0, "", NOW_MS)
    bench.flush()
    assert bench.finish() == [sent]
    assert bench.finish(group="h") == []


def test_a_dead_letter_without_lite_topic_is_not_redriven_into_one(bench: Bench) -> None:
    bench.broker.sending.send(Message(topic="u", body=b"x", message_id="M"), NOW_MS)
    bench.flush()
    received = bench.broker.receiving.receive("g", "u", parse_tags("*"), 1, 20_000, "c", False, NOW_MS)
    bench.broker.receiving.forward_to_dead_letter("g", "u", received.deliveries[0].receipt_handle, NOW_MS)
    bench.flush()
    with pytest.raises(MessageTypeConflict):
        bench.broker.dead_letters.redrive("g", 0, "t", NOW_MS)


def test_a_shorter_lease_and_a_suspended_one_work_as_ever(bench: Bench) -> None:
    sent = bench.send("a")
    bench.subscribe("a")
    (got,) = bench.receive()
    handle, _ = bench.broker.receiving.change_invisible(
        "g", "t", got.receipt_handle, 1_000, True, bench.now_ms
    )
    assert handle != got.receipt_handle
    bench.flush()
    assert bench.receive() == []
    bench.advance(1_000)
    (again,) = bench.receive()
    assert (again.message.message_id, again.attempt) == (sent, 1)


def test_what_is_released_comes_again_at_once(bench: Bench) -> None:
    sent = bench.send("a")
    bench.subscribe("a")
    (got,) = bench.receive()
    bench.broker.receiving.release("g", "t", got.receipt_handle, NOW_MS)
    assert Subscriber("g", "t", "c") in woken(bench.flush())
    assert bench.ids() == [sent]


# Restarts.


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_after_a_restart_nothing_comes_until_a_client_says_its_set_again(
    bench: Bench, has_snapshot: bool
) -> None:
    sent = [bench.send("a") for _ in range(3)]
    unread = bench.send("b")
    bench.subscribe("a")
    (got,) = bench.receive()
    bench.ack(got)
    if has_snapshot:
        bench.checkpoint()
    bench.reopen()
    assert bench.receive() == []
    bench.replace("a", "b")
    assert sorted(bench.finish()) == sorted([*sent[1:], unread])


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_lease_stands_again_after_a_restart_and_its_handle_is_good(
    bench: Bench, has_snapshot: bool
) -> None:
    sent = [bench.send("a") for _ in range(2)]
    bench.subscribe("a")
    (got,) = bench.receive()
    if has_snapshot:
        bench.checkpoint()
    bench.reopen()
    bench.replace("a", client="other")
    assert bench.receive("other") == []
    bench.ack(got)
    assert bench.ids("other") == sent[1:]


def test_a_new_core_goes_on_with_the_subscriptions_of_the_old_one(bench: Bench) -> None:
    sent = bench.send("a")
    bench.subscribe("a")
    before = bench.broker
    bench.reopen()
    bench.broker.lite.adopt_subscriptions(before.lite)
    assert bench.ids() == [sent]


# Where a group goes on.


def test_a_new_group_begins_with_the_first_message_or_where_it_was_told_to(bench: Bench) -> None:
    sent = [bench.send("a") for _ in range(2)]
    bench.subscribe("a")
    assert bench.finish() == sent
    bench.broker.group_views.create("late", "t", GroupStart(StartPosition.LATEST), NOW_MS)
    bench.subscribe("a", group="late")
    after = bench.send("a")
    assert bench.finish(group="late") == [after]


@pytest.mark.parametrize(
    ("start", "at", "expected"),
    [
        (LiteStartPosition.LAST, 0, slice(3, None)),
        (LiteStartPosition.MIN, 0, slice(None)),
        (LiteStartPosition.MAX, 0, slice(6, None)),
        (LiteStartPosition.TAIL, 2, slice(1, None)),
        (LiteStartPosition.TAIL, 0, slice(3, None)),
        (LiteStartPosition.TAIL, 99, slice(None)),
        (LiteStartPosition.TIME, NOW_MS + 2, slice(2, None)),
        (LiteStartPosition.TIME, NOW_MS + 4, slice(4, None)),
        (LiteStartPosition.TIME, NOW_MS + 40, slice(6, None)),
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_subscription_may_say_where_the_group_goes_on(
    bench: Bench, start: LiteStartPosition, at: int, expected: slice, restarts: bool
) -> None:
    sent = []
    for _ in range(6):
        sent.append(bench.send("a"))
        bench.send("b")
        bench.now_ms += 1
    bench.subscribe("a", "b", client="before")
    for _ in range(3):
        for one in bench.receive("before", batch=2):
            bench.ack(one)
    bench.subscribe("a", client="c", start=start, at=at)
    if restarts:
        bench.reopen()
        bench.replace("a")
    assert bench.finish("c") == sent[expected]
    bench.subscribe("b", client="d")
    assert len(bench.finish("d")) == 3, "another lite topic was moved, too"


def test_an_offset_is_that_which_consumers_see(bench: Bench) -> None:
    sent = [bench.send("a") for _ in range(4)]
    bench.subscribe("a")
    offsets = []
    while got := bench.receive():
        offsets.append(got[0].queue_offset)
        bench.ack(got[0])
    bench.subscribe("a", start=LiteStartPosition.OFFSET, at=offsets[1])
    assert bench.finish() == sent[1:]


def test_going_elsewhere_ends_the_leases_of_that_lite_topic(bench: Bench) -> None:
    sent = [bench.send("a") for _ in range(2)]
    bench.subscribe("a")
    (got,) = bench.receive()
    bench.subscribe("a", client="d", start=LiteStartPosition.MIN)
    with pytest.raises(InvalidReceiptHandle):
        bench.ack(got)
    assert bench.finish("d") == sent


def test_no_more_than_a_limit_is_moved_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        bench.send("a")
    bench.subscribe("a")
    bench.finish()
    monkeypatch.setattr(limits, "LITE_MOVED_MAX", 2)
    with pytest.raises(ClientMistake, match="3 messages of 'a' would come again"):
        bench.subscribe("a", start=LiteStartPosition.MIN)
    with pytest.raises(ClientMistake, match="and 3 would not"):
        bench.subscribe("a", group="h", start=LiteStartPosition.MAX)


def test_a_reset_group_gets_everything_again(bench: Bench) -> None:
    sent = [bench.send("a") for _ in range(3)]
    bench.subscribe("a")
    bench.finish()
    bench.broker.group_views.reset("g", "t", GroupStart(), False, NOW_MS)
    assert Subscriber("g", "t", "c") in woken(bench.flush())
    assert bench.finish() == sent


def test_a_paused_group_gets_nothing_until_it_is_resumed(bench: Bench) -> None:
    bench.broker.group_views.set_policy("g", GroupPolicy(is_paused=True), NOW_MS)
    bench.subscribe("a")
    sent = bench.send("a")
    assert bench.receive() == []
    bench.broker.group_views.set_policy("g", GroupPolicy(), NOW_MS)
    assert Subscriber("g", "t", "c") in woken(bench.flush())
    assert bench.ids() == [sent]


# What is refused.


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "ä", "a\x01b", "%", "x" * 65])
def test_a_lite_topic_must_have_a_plain_short_name(bench: Bench, name: str) -> None:
    with pytest.raises(IllegalLiteTopic):
        bench.subscribe(name)
    if name:
        with pytest.raises(IllegalLiteTopic):
            bench.send(name)


@pytest.mark.parametrize(
    ("topic", "attributes", "sentence"),
    [
        ("mixed", {"lite_topic": "a"}, "takes every type but PRIORITY and LITE"),
        ("t", {}, "'t' takes LITE messages, this one is NORMAL"),
        ("t", {"lite_topic": "a", "message_group": "g"}, "A FIFO message cannot belong to a lite topic too"),
        ("t", {"lite_topic": "a", "delivery_ms": NOW_MS}, "A DELAY message cannot belong"),
        ("t", {"lite_topic": "a", "transactional": True}, "A TRANSACTION message cannot belong"),
        ("t", {"lite_topic": "a", "priority": 1}, "PRIORITY"),
    ],
)
def test_a_message_of_a_lite_topic_is_nothing_else(
    bench: Bench, topic: str, attributes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(MessageTypeConflict, match=sentence):
        bench.broker.sending.send(Message(topic=topic, body=b"x", message_id="M", **attributes), NOW_MS)


def test_only_topics_of_that_type_have_lite_topics(bench: Bench) -> None:
    bench.broker.topics.create("mixed", MessageType.MIXED, 1, NOW_MS)
    with pytest.raises(MessageTypeConflict, match="tidewheel topic create NAME --type lite"):
        bench.broker.lite.subscribe(Subscriber("g", "mixed", "c"), ["a"], LiteStart(), NOW_MS)


def test_a_client_subscribes_to_no_more_than_its_quota() -> None:
    bench = Bench(replace(SETTINGS, lite_subscriptions_per_client_max=2))
    bench.subscribe("a", "b")
    bench.subscribe("b", "a")
    with pytest.raises(TooManyLiteSubscriptions):
        bench.subscribe("c")
    with pytest.raises(TooManyLiteSubscriptions):
        bench.replace("a", "b", "c")
    assert bench.broker.lite.lite_topics_of(Subscriber("g", "t", "c")) == ["a", "b"]
    bench.replace("c", "d")
    assert bench.broker.lite.lite_topics_of(Subscriber("g", "t", "c")) == ["c", "d"]


def test_a_topic_has_no_more_lite_topics_than_it_may() -> None:
    bench = Bench(replace(SETTINGS, lite_topics_max=2))
    bench.send("a")
    bench.send("b")
    bench.send("a")
    with pytest.raises(TooManyLiteTopics):
        bench.send("c")
    bench.reopen()
    bench.send("b")
    with pytest.raises(TooManyLiteTopics):
        bench.send("c")
    assert bench.broker.lite.count(bench.broker.topics.get("t")) == 2


def test_the_stored_property_is_that_of_rocketmq(bench: Bench) -> None:
    message = Message(topic="t", body=b"x", message_id="M", lite_topic="a")
    assert properties.value_of(properties.encode_message(message), "__LITE_TOPIC") == "a"
    with pytest.raises(IllegalProperty):
        bench.send("a", properties={"__LITE_TOPIC": "b"})


def test_a_start_works_where_the_file_of_a_queue_of_lite_topics_is_damaged() -> None:
    bench = Bench(replace(SETTINGS, queue_count=1, tail_entries_max=1))
    bench.send("a")
    bench.broker.store.dispatch.write()
    checkpoint = bench.broker.checkpoint(bench.now_ms)
    checkpoint.write(bench.disk)
    bench.broker.complete_checkpoint(checkpoint)
    bench.disk.flip_bit(f"consumequeue/t/0/{0:020}", 4 * 8)
    bench.reopen()
    bench.subscribe("a", start=LiteStartPosition.MIN)
    assert [one.message.message_id for one in bench.receive()] == ["M1"]


def test_a_queue_of_lite_topics_that_cannot_be_read_takes_no_other_and_comes_after_a_start() -> None:
    """What was leased of another queue in that receive was lost with it, and counted as an attempt."""
    bench = Bench(replace(SETTINGS, tail_entries_max=1))
    disk = bench.disk = Asked()
    bench.broker = Broker.open(disk, bench.settings, bench.now_ms)
    topic = bench.broker.topics.create("t", MessageType.LITE, 2, bench.now_ms)
    bench.flush()
    first, second = ({queue_of(name, topic): name for name in "abcdefgh"}[queue_id] for queue_id in (0, 1))
    bench.subscribe(first, second)
    bench.send(first)
    bench.send(second)
    bench.broker.store.dispatch.write()
    disk.unreadable = "consumequeue/t/1/"
    assert bench.ids() == ["M1"]
    with pytest.raises(StoreDamaged):
        bench.receive()
    bench.flush()
    disk.unreadable = "none"
    bench.reopen()
    bench.subscribe(first, second)
    assert bench.ids() == ["M2"], "the lease of the other stands"


def test_a_core_begins_where_the_file_of_a_queue_of_lite_topics_was_damaged_since_it_was_recovered() -> None:
    """A node that follows for hours before it leads: what its `begin` raised ended the lead, or the node."""
    bench = Bench(replace(SETTINGS, tail_entries_max=1))
    topic = bench.broker.topics.get("t")
    first, second, other = (
        next(name for name in names if queue_of(name, topic) == queue_id)
        for names, queue_id in (("abcdefgh", 0), ("abcdefgh", 1), ("ijklmnop", 1))
    )
    bench.send(first)
    bench.send(second)
    bench.broker.store.dispatch.write()
    checkpoint = bench.broker.checkpoint(bench.now_ms)
    checkpoint.write(bench.disk)
    bench.broker = Broker.recover(bench.disk, bench.settings, bench.now_ms)
    bench.disk.flip_bit(f"consumequeue/t/0/{0:020}", 4 * 8)
    bench.broker.begin(bench.now_ms)
    assert [one.part for one in bench.broker.damage] == ["queue"]
    bench.send(first)
    bench.send(other)
    bench.reopen()
    assert bench.broker.rebuilt_files != []
    bench.subscribe(first, second, other)
    assert sorted(bench.finish()) == ["M1", "M2", "M3", "M4"]
