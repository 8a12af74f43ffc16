"""What a broker owes every official client: the names of all scenarios, and each played against one client.

`SCENARIOS` has them by name; every one is played by every client of `official`, on topics and groups of its
own. `CANNOT` has the few that a client's library cannot play, with the reason. Nothing here waits for longer
than it must: what is to come is awaited, and that nothing comes is asked with a short long poll.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pytest

from tests.clients.official import Refused
from tests.clients.play import ARRIVE_SECONDS, Play, bodies, finish, nothing_comes, take, until

ATTEMPTS_MAX = 17
BODY_BYTES_MAX = 4 * 1024 * 1024


# Sending.


def a_message_arrives_as_it_was_sent(play: Play) -> None:
    attributes = {"tag": "paid", "keys": ["order-1"], "properties": {"colour": "blue"}}
    sent = play.client.send(play.topic, "body ünïcode", **attributes)
    [got] = take(play.consumer(), 1)
    assert (got.body, got.tag, got.keys) == ("body ünïcode", "paid", ("order-1",))
    assert (got.properties, got.message_id, got.attempt) == ({"colour": "blue"}, sent.message_id, 1)


def a_body_of_four_mebibytes_is_taken_and_one_byte_more_refused(play: Play) -> None:
    play.send_all("x" * BODY_BYTES_MAX)
    with pytest.raises(Refused):
        play.send_all("x" * (BODY_BYTES_MAX + 1))
    assert [len(body) for body in play.stored()] == [BODY_BYTES_MAX]


def a_body_of_four_mebibytes_arrives(play: Play) -> None:
    play.send_all("x" * BODY_BYTES_MAX)
    [got] = take(play.consumer(), 1)
    assert len(got.body) == BODY_BYTES_MAX


def a_message_of_another_type_is_refused(play: Play) -> None:
    play.create_topic("DELAY")
    with pytest.raises(Refused, match="not match"):
        play.send_all("at once")
    assert play.stored() == []


def a_reserved_property_is_refused(play: Play) -> None:
    with pytest.raises(Refused, match="TW-135"):
        play.send_all("refused", properties={"UNIQ_KEY": "mine"})
    assert play.stored() == []


def a_delayed_message_is_never_early(play: Play) -> None:
    due_s = int(time.time()) + 2
    play.send_all("later", deliver_at_s=due_s)
    take(play.consumer(), 1)
    assert time.time() >= due_s


def a_recalled_message_never_arrives(play: Play) -> None:
    due_s = int(time.time()) + 2
    sent = play.client.send(play.topic, "recalled", deliver_at_s=due_s)
    assert play.client.recall(play.topic, sent.recall_handle) == sent.message_id
    play.send_all("kept", deliver_at_s=due_s)
    assert finish(play.consumer(), 1) == ["kept"]
    assert play.stored() == ["kept"]


def a_recall_that_is_too_late_is_told_so(play: Play) -> None:
    sent = play.client.send(play.topic, "gone", deliver_at_s=int(time.time()) - 1)
    take(play.consumer(), 1)
    with pytest.raises(Refused, match="TOO_LATE"):
        play.client.recall(play.topic, sent.recall_handle)


# Transactions.


def a_commit_shows_the_message_and_a_rollback_never_does(play: Play) -> None:
    for name, how in (("no", "rollback"), ("yes", "commit")):
        play.client.send_half(play.topic, play.named(name))
        play.client.end_half(play.named(name), how)
    assert finish(play.consumer(), 1) == [play.named("yes")]
    assert play.stored() == [play.named("yes")]


def a_half_that_is_left_alone_is_asked_about_and_ends_as_answered(play: Play) -> None:
    policy = {"immunity_ms": 200, "interval_ms": 200, "count_max": 1_000}
    play.create_topic("TRANSACTION")
    play.ask("PUT", f"topics/{play.topic}/check-back", policy)
    for name, answers in (("r", ["rollback"]), ("u", ["unknown", "commit"]), ("c", ["commit"])):
        play.client.answer_checks(play.named(name), *answers)
        play.client.send_half(play.topic, play.named(name))
    committed = [play.named("c"), play.named("u")]
    until(lambda: not open_halves(play) and play.stored() == committed)


def open_halves(play: Play) -> list[Any]:
    """The halves of the topic that nobody has ended."""
    found = play.ask("GET", f"transactions?topic={play.topic}")["transactions"]
    return [half for half in found if half["state"] == "OPEN"]


# Filters.


def a_tag_filter_lets_only_its_tags_through(play: Play) -> None:
    for tag in ("paid", "shipped", "new", "paid"):
        play.send_all(tag, tag=tag)
    consumer = play.consumer(filter_="paid||shipped")
    assert sorted(finish(consumer, 3)) == ["paid", "paid", "shipped"]
    nothing_comes(play)


# Groups.


def two_groups_each_get_everything(play: Play) -> None:
    play.send_all("a", "b", "c")
    for group in (play.named("one"), play.named("other")):
        assert bodies(take(play.consumer(group), 3)) == ["a", "b", "c"]


def consumers_of_a_group_share_its_messages(play: Play) -> None:
    play.send_all(*(f"{number:02d}" for number in range(20)))
    first, second = play.consumer(), play.consumer()
    half = take(first, 10, batch=10)
    rest = take(second, 10, batch=10)
    assert bodies(half + rest) == [f"{number:02d}" for number in range(20)]


def one_receive_brings_at_most_thirty_two(play: Play) -> None:
    play.send_all(*(str(number) for number in range(40)))
    assert len(play.consumer().receive(64)) == 32


# Waiting.


def an_empty_topic_is_answered_when_the_wait_is_over(play: Play) -> None:
    play.send_all("seen")
    consumer = play.consumer(await_seconds=2)
    finish(consumer, 1)
    began = time.monotonic()
    assert consumer.receive() == []
    assert time.monotonic() - began > 1


def a_long_poll_wakes_when_a_message_comes(play: Play) -> None:
    consumer = play.consumer(await_seconds=20)
    waiting = consumer.receiving()
    until(lambda: play.group_has_begun())
    play.send_all("wake up")
    assert bodies(waiting.result(ARRIVE_SECONDS)) == ["wake up"]


# Leases.


def what_is_acknowledged_never_comes_again(play: Play) -> None:
    play.send_all("once")
    consumer = play.consumer()
    [got] = take(consumer, 1, lease_seconds=1)
    consumer.ack(got)
    nothing_comes(play)


def what_is_not_acknowledged_comes_again_and_its_old_handle_is_void(play: Play) -> None:
    play.send_all("again")
    consumer = play.consumer()
    [first] = take(consumer, 1, lease_seconds=1)
    [second] = take(consumer, 1)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.message_id == second.message_id
    with pytest.raises(Refused, match="TW-146"):
        consumer.ack(first)
    consumer.ack(second)
    nothing_comes(play)


def an_acknowledged_handle_is_void(play: Play) -> None:
    play.send_all("once")
    consumer = play.consumer()
    [got] = take(consumer, 1)
    consumer.ack(got)
    with pytest.raises(Refused, match="TW-146"):
        consumer.ack(got)


def another_group_cannot_acknowledge(play: Play) -> None:
    play.send_all("mine")
    owner, thief = play.consumer(), play.consumer(play.named("thief"))
    [got] = take(owner, 1)
    with pytest.raises(Refused, match="TW-146"):
        thief.ack(got)
    owner.ack(got)
    assert finish(thief, 1) == ["mine"]


def a_shorter_lease_brings_the_message_back_sooner(play: Play) -> None:
    play.send_all("sooner")
    consumer = play.consumer()
    [got] = take(consumer, 1, lease_seconds=3_600)
    changed = consumer.change_invisible(got, 1)
    [again] = take(consumer, 1)
    assert again.message_id == got.message_id
    with pytest.raises(Refused, match="TW-146"):
        consumer.ack(changed)
    consumer.ack(again)


def a_longer_lease_keeps_the_message_and_its_first_handle_is_void(play: Play) -> None:
    play.send_all("longer")
    consumer = play.consumer()
    [got] = take(consumer, 1, lease_seconds=1)
    changed = consumer.change_invisible(got, 60)
    assert changed.handle != got.handle
    nothing_comes(play)
    with pytest.raises(Refused, match="TW-146"):
        consumer.ack(got)
    consumer.ack(changed)


def a_nack_brings_the_message_at_once_as_the_next_attempt(play: Play) -> None:
    play.send_all("nack")
    consumer = play.consumer()
    for attempt in (1, 2, 3):
        [got] = take(consumer, 1)
        assert got.attempt == attempt
        consumer.change_invisible(got, 0)


def after_its_last_attempt_a_message_is_a_dead_letter(play: Play) -> None:
    play.send_all("poison")
    consumer = play.consumer(await_seconds=2)
    for _ in range(ATTEMPTS_MAX):
        [got] = take(consumer, 1)
        consumer.change_invisible(got, 0)
    assert got.attempt == ATTEMPTS_MAX
    assert consumer.receive() == []
    [dead] = take(play.client.simple(f"%DLQ%{play.group}", play.named("morgue")), 1)
    assert (dead.body, dead.message_id) == ("poison", got.message_id)


# Push consumers.


def a_push_consumer_gets_every_message_once(play: Play) -> None:
    listener = play.push()
    play.send_all(*(f"{number:02d}" for number in range(40)))
    until(lambda: len(listener.seen()) >= 40 and not play.lag())
    assert bodies(list(listener.seen())) == [f"{number:02d}" for number in range(40)]


def a_push_consumer_gets_a_failed_message_again(play: Play) -> None:
    listener = play.push(failures=1)
    play.send_all("retry me")
    until(lambda: [call.attempt for call in listener.seen()] == [1, 2] and not play.lag())


# Order.


def messages_of_a_group_come_in_order_and_never_two_at_once(play: Play) -> None:
    sent = defaultdict(list)
    for number in range(12):
        customer = f"customer-{number % 3}"
        play.send_all(f"{number:02d}", message_group=customer)
        sent[customer].append(f"{number:02d}")
    consumer, came = play.consumer(await_seconds=2), defaultdict(list)
    while sum(map(len, came.values())) < 12:
        batch = consumer.receive()
        customers = [one.message_group for one in batch]
        assert len(customers) == len(set(customers)), "two messages of one group in flight"
        for one in batch:
            came[one.message_group].append(one.body)
            consumer.ack(one)
    assert came == sent


def a_failed_message_holds_back_its_group_and_no_other(play: Play) -> None:
    for body, customer in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        play.send_all(body, message_group=customer)
    consumer = play.consumer(await_seconds=2)
    first = {one.body: one for one in take(consumer, 2)}
    assert sorted(first) == ["a1", "b1"]
    first["a1"] = consumer.change_invisible(first["a1"], 2)
    consumer.ack(first["b1"])
    [b2] = take(consumer, 1)
    assert b2.body == "b2"
    consumer.ack(b2)
    assert finish(consumer, 2) == ["a1", "a2"]


def a_push_consumer_keeps_the_order_of_a_group(play: Play) -> None:
    play.create_topic("FIFO")
    numbers = [f"{number:02d}" for number in range(6)]
    for number in numbers:
        play.send_all(number, message_group="customer")
    listener = play.push()
    until(lambda: len(listener.seen()) >= len(numbers) and not play.lag())
    calls = listener.seen()
    assert [call.body for call in calls] == numbers
    assert all(before.ended_ms <= after.began_ms for before, after in pairwise(calls))


SCENARIOS: Final[dict[str, Callable[[Play], None]]] = {
    "send and receive": a_message_arrives_as_it_was_sent,
    "send four mebibytes": a_body_of_four_mebibytes_is_taken_and_one_byte_more_refused,
    "receive four mebibytes": a_body_of_four_mebibytes_arrives,
    "type refused": a_message_of_another_type_is_refused,
    "property refused": a_reserved_property_is_refused,
    "delay": a_delayed_message_is_never_early,
    "recall": a_recalled_message_never_arrives,
    "recall too late": a_recall_that_is_too_late_is_told_so,
    "commit and rollback": a_commit_shows_the_message_and_a_rollback_never_does,
    "check-back": a_half_that_is_left_alone_is_asked_about_and_ends_as_answered,
    "tag filter": a_tag_filter_lets_only_its_tags_through,
    "two groups": two_groups_each_get_everything,
    "shared group": consumers_of_a_group_share_its_messages,
    "batch of 32": one_receive_brings_at_most_thirty_two,
    "empty receive": an_empty_topic_is_answered_when_the_wait_is_over,
    "long poll wakes": a_long_poll_wakes_when_a_message_comes,
    "ack": what_is_acknowledged_never_comes_again,
    "lease runs out": what_is_not_acknowledged_comes_again_and_its_old_handle_is_void,
    "ack twice refused": an_acknowledged_handle_is_void,
    "foreign ack refused": another_group_cannot_acknowledge,
    "change invisible shorter": a_shorter_lease_brings_the_message_back_sooner,
    "change invisible longer": a_longer_lease_keeps_the_message_and_its_first_handle_is_void,
    "nack": a_nack_brings_the_message_at_once_as_the_next_attempt,
    "dead letter": after_its_last_attempt_a_message_is_a_dead_letter,
    "push": a_push_consumer_gets_every_message_once,
    "push retry": a_push_consumer_gets_a_failed_message_again,
    "FIFO order": messages_of_a_group_come_in_order_and_never_two_at_once,
    "FIFO retry": a_failed_message_holds_back_its_group_and_no_other,
    "push FIFO": a_push_consumer_keeps_the_order_of_a_group,
}
CANNOT: Final[dict[tuple[str, str], str]] = {
    (
        "node",
        "receive four mebibytes",
    ): "grpc-js takes no reply above 4 MiB and the client cannot change it",
}
