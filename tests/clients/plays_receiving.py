"""How messages are waited for, leased, tried again and kept in order."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import pairwise

import pytest

from tests.clients.official import Refused
from tests.clients.play import ARRIVE_SECONDS, Play, bodies, finish, nothing_comes, take, until

ATTEMPTS_MAX = 17


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


def a_poisonous_message_is_a_dead_letter_after_the_last_attempt_of_its_group(play: Play) -> None:
    play.create_topic("MIXED")
    play.set_group(attempts_max=2, retry_after_ms=[1_000, 3_600_000])  # the second pause is before no attempt
    listener = play.push(poison="poison")
    play.send_all("poison", "good")
    until(lambda: play.listed_dead_letters() and not play.lag())
    assert bodies(list(listener.seen())) == ["good", "poison", "poison"]
    assert play.dead_letters() == ["poison"]
    [letter] = play.listed_dead_letters()
    assert (letter["attempts"], letter["reason"]) == (2, "attempts used up")


def a_poisonous_message_holds_its_group_up_only_until_it_is_a_dead_letter(play: Play) -> None:
    play.create_topic("FIFO")
    play.set_group(attempts_max=2, retry_after_ms=[1_000])
    play.send_all("poison", "next", "last", message_group="customer")
    listener = play.push(poison="poison")
    until(lambda: play.listed_dead_letters() and not play.lag())
    came = [call.body for call in listener.seen()]
    assert [body for body in came if body != "poison"] == ["next", "last"]
    assert came[0] == "poison"
    assert came[-2:] == ["next", "last"]
    assert play.dead_letters() == ["poison"]
    [letter] = play.listed_dead_letters()
    assert letter["attempts"] == came.count("poison")
    assert "given up by its consumer" in letter["last_error"]["what"]
