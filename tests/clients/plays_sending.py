"""What producers send, and what of it a filter lets through."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.clients.official import Refused
from tests.clients.play import Play, finish, take, until

BODY_BYTES_MAX = 4 * 1024 * 1024
OF_ANOTHER_TYPE = "not match|TW-144"  # most clients see it from the route, the others are told by the broker


def a_message_arrives_as_it_was_sent(play: Play) -> None:
    key = "order 1\u00a0b"  # one key, whatever blanks it has
    attributes = {"tag": "paid", "keys": [key], "properties": {"colour": "blue"}}
    sent = play.client.send(play.topic, "body ünïcode", **attributes)
    [got] = take(play.consumer(), 1)
    assert (got.body, got.tag, got.keys) == ("body ünïcode", "paid", (key,))
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
    with pytest.raises(Refused, match=OF_ANOTHER_TYPE):
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
    consumer = play.consumer(filter_="paid||shipped", await_seconds=2)
    assert sorted(finish(consumer, 3)) == ["paid", "paid", "shipped"]
    assert consumer.receive() == []
    assert play.lag() == 0


def an_sql_filter_lets_only_what_is_true_through(play: Play) -> None:
    for body, price, region in (("a", "5", "eu"), ("b", "20", "eu"), ("c", "20", "us"), ("d", "x", "eu")):
        play.send_all(body, properties={"price": price, "region": region})
    wanted = "price > 10 AND region IN ('eu', 'asia')"
    consumer = play.consumer(filter_=wanted, is_sql=True, await_seconds=2)
    assert finish(consumer, 1) == ["b"]
    assert consumer.receive() == []
    assert play.lag() == 0


def a_wrong_expression_is_refused_with_its_place(play: Play) -> None:
    play.send_all("unseen")
    with pytest.raises(Refused, match=r"TW-139 .*Line 1, column"):
        play.consumer(filter_="price >", is_sql=True, await_seconds=2).receive()


def what_has_a_higher_priority_comes_first(play: Play) -> None:
    play.create_topic("PRIORITY")
    for priority in (1, 3, 2, 3):
        play.send_all(f"priority {priority}", priority=priority)
    came = finish(play.consumer(), 4)
    assert came == ["priority 3", "priority 3", "priority 2", "priority 1"]


def a_priority_is_refused_where_none_is_kept(play: Play) -> None:
    play.create_topic("NORMAL")
    with pytest.raises(Refused, match=OF_ANOTHER_TYPE):
        play.send_all("urgent", priority=2)
    assert play.stored() == []
