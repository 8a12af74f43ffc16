"""Lite topics: who gets what of a topic that holds many, in which order, and what is refused."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from tests.clients.official import Refused
from tests.clients.play import ARRIVE_SECONDS, Play, bodies, finish, take, until


def send(play: Play, lite_topic: str, *texts: str) -> None:
    """Send to a lite topic of the play's topic."""
    play.send_all(*texts, lite_topic=lite_topic)


def a_consumer_gets_the_lite_topics_it_subscribed_to_and_no_others(play: Play) -> None:
    play.create_topic("LITE")
    for lite_topic in ("a", "b", "c"):
        send(play, lite_topic, f"of {lite_topic}")
    consumer = play.lite_consumer("a", "c", await_seconds=2)
    got = take(consumer, 2)
    assert sorted((one.lite_topic, one.body) for one in got) == [("a", "of a"), ("c", "of c")]
    for one in got:
        consumer.ack(one)
    assert consumer.receive() == []
    consumer.subscribe_lite("b")
    assert finish(consumer, 1) == ["of b"]


def messages_of_a_lite_topic_come_in_order_and_never_two_at_once(play: Play) -> None:
    play.create_topic("LITE")
    sent = defaultdict(list)
    for number in range(12):
        session = f"session-{number % 3}"
        send(play, session, f"{number:02d}")
        sent[session].append(f"{number:02d}")
    consumer, came = play.lite_consumer(*sent, await_seconds=2), defaultdict(list)
    while sum(map(len, came.values())) < 12:
        batch = consumer.receive()
        lite_topics = [one.lite_topic for one in batch]
        assert len(lite_topics) == len(set(lite_topics)), "two messages of one lite topic in flight"
        for one in batch:
            came[one.lite_topic].append(one.body)
            consumer.ack(one)
    assert came == sent


def a_nack_brings_the_message_again_before_the_later_ones(play: Play) -> None:
    play.create_topic("LITE")
    send(play, "a", "first", "second")
    consumer = play.lite_consumer("a")
    for attempt in (1, 2, 3):
        [got] = take(consumer, 1)
        assert (got.body, got.attempt) == ("first", attempt)
        got = consumer.change_invisible(got, 0)
    assert finish(consumer, 2) == ["first", "second"]


def what_is_not_acknowledged_comes_again_and_holds_back_what_is_behind_it(play: Play) -> None:
    play.create_topic("LITE")
    send(play, "a", "first", "second")
    consumer = play.lite_consumer("a")
    [lost] = take(consumer, 1, lease_seconds=1)
    [again] = take(consumer, 1)
    assert (lost.body, again.body, again.attempt) == ("first", "first", 2)
    with pytest.raises(Refused, match="TW-146"):
        consumer.ack(lost)
    consumer.ack(again)
    assert finish(consumer, 1) == ["second"]


def a_long_poll_wakes_for_its_lite_topics_only(play: Play) -> None:
    play.create_topic("LITE")
    consumer = play.lite_consumer("mine", await_seconds=20)
    waiting = consumer.receiving()
    until(play.group_has_begun)
    send(play, "others", "leave me")
    send(play, "mine", "wake up")
    assert bodies(waiting.result(ARRIVE_SECONDS)) == ["wake up"]


def what_one_no_longer_wants_is_there_for_the_next(play: Play) -> None:
    play.create_topic("LITE")
    first = play.lite_consumer("a", await_seconds=2)
    send(play, "a", "one")
    assert finish(first, 1) == ["one"]
    first.unsubscribe_lite("a")
    send(play, "a", "two")
    assert first.receive() == []
    assert finish(play.lite_consumer("a"), 1) == ["two"]


# Push consumers.


def a_push_consumer_gets_the_lite_topics_it_subscribed_to_in_order(play: Play) -> None:
    play.create_topic("LITE")
    texts = [f"{number:02d}" for number in range(6)]
    for text in texts:
        for lite_topic in ("a", "b", "others"):
            send(play, lite_topic, f"{lite_topic} {text}")
    listener = play.lite_push("a", "b")
    until(lambda: len(listener.seen()) >= 2 * len(texts) and play.lag() == len(texts))
    for lite_topic in ("a", "b"):
        calls = [call for call in listener.seen() if call.lite_topic == lite_topic]
        assert [call.body for call in calls] == [f"{lite_topic} {text}" for text in texts]
        assert all(before.ended_ms <= after.began_ms for before, after in pairwise(calls))
    assert len(listener.seen()) == 2 * len(texts)


def a_push_consumer_gets_nothing_of_what_it_unsubscribed_from(play: Play) -> None:
    play.create_topic("LITE")
    listener = play.lite_push("a", "b")
    send(play, "a", "one")
    until(lambda: len(listener.seen()) == 1 and not play.lag())
    listener.unsubscribe_lite("a")
    send(play, "a", "left alone")
    send(play, "b", "two")
    until(lambda: len(listener.seen()) >= 2 and play.lag() == 1)
    assert [call.body for call in listener.seen()] == ["one", "two"]


def a_push_consumer_gets_a_failed_message_again_before_the_later_ones(play: Play) -> None:
    play.create_topic("LITE")
    send(play, "a", "first", "second")
    listener = play.lite_push("a", failures=1)
    until(lambda: len(listener.seen()) >= 4 and not play.lag())
    assert [call.body for call in listener.seen()] == ["first", "first", "second", "second"]


def in_an_exclusive_group_who_subscribes_last_gets_a_lite_topic(play: Play) -> None:
    play.create_topic("LITE")
    play.set_group(is_lite_exclusive=True)
    before = play.lite_push("a", "b")
    send(play, "a", "one")
    until(lambda: len(before.seen()) == 1 and not play.lag())
    after = play.lite_push("a")
    for number in range(5):
        send(play, "a", f"for the new one {number}")
    send(play, "b", "for the old one")
    until(lambda: not play.lag())
    assert [call.lite_topic for call in after.seen()] == ["a"] * 5
    assert [call.body for call in before.seen()] == ["one", "for the old one"]


# What is refused.


def a_message_must_belong_to_a_lite_topic(play: Play) -> None:
    play.create_topic("LITE")
    with pytest.raises(Refused):
        play.send_all("belongs nowhere")
    ordinary = play.named("ordinary")
    play.client.send(ordinary, "made by being used")
    with pytest.raises(Refused):
        play.client.send(ordinary, "no place for me", lite_topic="a")


def a_lite_topic_must_have_a_plain_name(play: Play) -> None:
    play.create_topic("LITE")
    listener = play.lite_push()
    for name in ("two words", "x" * 65):
        with pytest.raises(Refused):
            listener.subscribe_lite(name)
    with pytest.raises(Refused, match="TW-190"):
        send(play, "two words", "x")


def an_ordinary_consumer_is_told_how_to_receive_lite_topics(play: Play) -> None:
    play.create_topic("LITE")
    consumer = play.consumer(await_seconds=2)
    with pytest.raises(Refused, match="LitePushConsumer"):
        until(lambda: consumer.receive() is None, 10)
