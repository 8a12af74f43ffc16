"""The operations: the requests that they build, and the values that they read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.client import calls
from tidewheel.client.calls import BATCH_BYTES_MAX, BATCH_COUNT_MAX
from tidewheel.client.exchange import Answer, Failure, Fault, Pause, Request, Steps
from tidewheel.client.values import NewMessage, Sent, SomeRefused, Verdict
from tidewheel.errors import (
    AnswerLate,
    AnswerLost,
    Busy,
    ClientMistake,
    InvalidReceiptHandle,
    RefusedByState,
    TidewheelError,
)

NAMES = st.text(min_size=1).filter(lambda text: text.isprintable())


def first(steps: Steps[Any]) -> Request:
    """Return the first request of an operation."""
    request = next(steps)
    assert isinstance(request, Request)
    return request


def answered(steps: Steps[Any], content: object, status: int = 200) -> Any:
    """Return what an operation makes of an answer."""
    first(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(Answer(status, json.dumps(content).encode(), "http://here", 0.0, 0.1))
    return end.value.value


def receipt(message_id: str) -> dict[str, str | None]:
    return {
        "message_id": message_id,
        "queue_offset": "1",
        "physical_offset": "2",
        "recall_handle": "",
        "replaced_offset": None,
        "verdict": None,
    }


def test_a_message_is_sent_with_what_it_says_and_no_more() -> None:
    request = first(calls.send(NewMessage("orders", "x"), "", "ID"))
    assert (request.method, request.path, request.is_repeatable) == ("POST", "/api/messages", True)
    assert json.loads(request.body or b"") == {"topic": "orders", "body": "x", "idempotency_key": "ID"}
    full = NewMessage(
        "orders", {"id": 7}, delay="1s", key="k", unique=True, group="g", tag="t", keys=iter(["a"]),
        properties={"p": "q"}, idempotency_key="own",
    )  # fmt: skip
    assert json.loads(first(calls.send(full, "ns", "ID")).body or b"") == {
        "topic": "ns%orders",
        "body": '{"id":7}',
        "idempotency_key": "own",
        "in": "1000ms",
        "timer_key": "k",
        "unique": True,
        "message_group": "g",
        "tag": "t",
        "keys": ["a"],
        "properties": {"content-type": "application/json", "p": "q"},
    }


@pytest.mark.parametrize(
    "options",
    [
        {"delay": "30"},
        {"delay": "1s", "at": 1},
        {"key": "k"},
        {"unique": True, "delay": "1s"},
        {"keys": "order-7"},
        {"properties": {"a": b"x"}},
        {"tag": "\ud800"},
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_sent(options: dict[str, Any]) -> None:
    with pytest.raises(ClientMistake):
        calls.send(NewMessage("orders", "x", **options), "", "ID")


@given(st.lists(st.integers(0, BATCH_BYTES_MAX // 2), max_size=8), st.integers(0, 2 * BATCH_COUNT_MAX))
def test_batches_are_bounded_and_each_message_has_its_own_result(sizes: list[int], small: int) -> None:
    bodies = ["x" * size for size in sizes] + ["y"] * small
    numbers = iter(range(10**6))
    steps = calls.send_many([NewMessage("t", body) for body in bodies], "", lambda: str(next(numbers)))
    reply, batches = None, []
    try:
        while True:
            request = steps.send(reply)
            assert isinstance(request, Request)
            content = json.loads(request.body or b"")["messages"]
            batches.append(content)
            assert len(content) == 1 or len(request.body or b"") <= BATCH_BYTES_MAX + 2_048
            assert len(content) <= BATCH_COUNT_MAX
            shapes = {"messages": [receipt(one["idempotency_key"]) for one in content]}
            reply = Answer(200, json.dumps(shapes).encode(), "http://here", 0.0, 0.1)
    except StopIteration as end:
        results: list[Sent] = end.value
    assert [one.id for one in results] == [str(number) for number in range(len(bodies))]
    assert len(bodies) == sum(map(len, batches))


def test_a_batch_without_an_answer_refuses_its_messages_and_no_others() -> None:
    steps = calls.send_many([NewMessage("t", "x")] * (BATCH_COUNT_MAX + 1), "", lambda: "ID")
    first(steps)
    shapes = {"messages": [receipt("ID")] * BATCH_COUNT_MAX}
    steps.send(Answer(200, json.dumps(shapes).encode(), "http://here", 0.0, 0.1))
    with pytest.raises(SomeRefused, match=f"1 of {BATCH_COUNT_MAX + 1}") as refused:
        steps.send(Failure(Fault.LATE, "", "http://here", 0.0, 30.0))
    assert isinstance(refused.value.results[-1], TidewheelError)
    assert all(isinstance(one, Sent) for one in refused.value.results[:-1])


def test_nothing_is_sent_behind_a_batch_without_an_answer() -> None:
    """It would take seconds for each batch, and leave gaps in message groups."""
    count = 2 * BATCH_COUNT_MAX + 1
    steps = calls.send_many([NewMessage("t", "x", group="g")] * count, "", lambda: "ID")
    first(steps)
    with pytest.raises(SomeRefused, match=f"{count} of {count}") as refused:
        steps.send(Failure(Fault.LATE, "", "http://here", 0.0, 30.0))
    kinds = [type(one) for one in refused.value.results]
    assert kinds == [AnswerLate] * BATCH_COUNT_MAX + [Busy] * (count - BATCH_COUNT_MAX)


@given(NAMES, NAMES)
def test_any_key_is_asked_for_as_it_is(topic: str, key: str) -> None:
    from urllib.parse import parse_qs, urlsplit

    found = parse_qs(urlsplit(first(calls.get(topic, key)).path).query)
    assert found == {"topic": [topic], "key": [key]}
    body = json.loads(first(calls.cancel(topic, key, "")).body or b"")
    assert body == {"topic": topic, "key": key, "reason": ""}


@given(NAMES)
def test_any_group_is_one_part_of_a_path_or_refused(group: str) -> None:
    from urllib.parse import unquote

    if "/" in group or not group.strip("."):
        with pytest.raises(ClientMistake, match="cannot be the name of a group"):
            first(calls.ack(group, ["h"]))
        return
    _, api, groups, name, verb = first(calls.ack(group, ["h"])).path.split("/")
    assert (api, groups, unquote(name), verb) == ("api", "groups", group, "ack")


@pytest.mark.parametrize("group", ["", ".", "..", "a/b", "\ud800", None, 7])
def test_a_group_that_no_path_can_hold_is_refused_before_anything_is_sent(group: Any) -> None:
    with pytest.raises(ClientMistake, match="group"):
        calls.receive("t", group, count=1, wait="1s", lease="30s", tags="", sql="", name="me")


@pytest.mark.parametrize(("topic", "key"), [("t", None), ("t", 7), (None, "k"), ("t", b"k"), ("t", "\ud800")])
def test_a_timer_is_named_by_texts_and_never_by_what_looks_like_one(topic: Any, key: Any) -> None:
    for steps in (lambda: calls.get(topic, key), lambda: calls.cancel(topic, key, "")):
        with pytest.raises(ClientMistake):
            steps()


@pytest.mark.parametrize("name", ["topic", "key", "group", "tag", "idempotency_key"])
@pytest.mark.parametrize("value", [0, 7, None, b"x", ["x"]])
def test_no_name_of_another_type_is_dropped(name: str, value: Any) -> None:
    options = {"topic": "t", "body": "x", "delay": "1s", name: value}
    with pytest.raises(ClientMistake, match=f"{name} is .*: give a text"):
        NewMessage(**options)


def test_what_is_no_message_is_refused_and_the_others_are_sent() -> None:
    messages: list[Any] = ["text", NewMessage("t", "x"), ("t", "x")]
    steps = calls.send_many(messages, "", lambda: "ID")
    assert len(json.loads(first(steps).body or b"")["messages"]) == 1
    with pytest.raises(SomeRefused, match=r"2 of 3, the first is number 0: .*NewMessage") as refused:
        steps.send(Answer(200, json.dumps({"messages": [receipt("ID")]}).encode(), "http://here", 0.0, 0.1))
    assert isinstance(refused.value.results[1], Sent)


def test_a_timer_that_never_was_has_no_times() -> None:
    content = {"verdict": "NEVER_SET", "message_id": "", "ended_ms": "0", "ended_offset": "-1", "due_ms": "0"}
    result = answered(calls.get("t", "k"), content, 404)
    assert (result.due, result.at, result.offset) == (None, None, None)


@pytest.mark.parametrize(
    ("status", "verdict", "is_done"),
    [
        (200, "CANCELLED", True),
        (200, "ALREADY", True),
        (409, "ALREADY", False),
        (409, "TOO_LATE", False),
        (404, "NEVER_SET", False),
        (404, "FORGOTTEN", False),
    ],
)
def test_a_verdict_is_true_where_the_timer_is_as_asked(status: int, verdict: str, is_done: bool) -> None:
    content = {"verdict": verdict, "message_id": "A", "ended_ms": "5", "ended_offset": "7", "due_ms": "0"}
    result = answered(calls.cancel("t", "k", ""), content, status)
    assert (result.verdict, bool(result)) == (Verdict(verdict), is_done)
    assert (result.due, result.at.timestamp(), result.offset) == (None, 0.005, 7)


def test_verbs_on_timers_are_not_repeated_when_their_answer_is_lost() -> None:
    for steps in (calls.cancel("t", "k", ""), calls.fire("t", "k", ""), calls.move("t", "k", "1s", "")):
        assert not first(steps).is_repeatable


def test_a_handle_that_was_refused_raises_its_error_and_an_extended_one_is_replaced() -> None:
    error = {"code": "TW-146", "detail": "", "message": "The receipt handle is no longer valid."}
    results = {"results": [{"receipt_handle": "h", "error": error, "new_receipt_handle": None}]}
    for steps in (calls.ack_one("g", "h"), calls.retry("g", "h", "1s"), calls.reject("g", "h", "")):
        first(steps)
        with pytest.raises(InvalidReceiptHandle, match="no longer valid"):
            steps.send(Answer(200, json.dumps(results).encode(), "http://here", 0.0, 0.1))
    sound = {"results": [{"receipt_handle": "h", "error": None, "new_receipt_handle": "new"}]}
    assert answered(calls.extend("g", "h", "1m"), sound) == "new"


@given(st.text())
def test_a_reason_is_one_printable_line(reason: str) -> None:
    line = calls.one_line(reason)
    assert line.isprintable()
    assert len(line) <= calls.REASON_CHARACTERS_MAX
    if reason.isprintable() and len(reason) < 100:
        assert line.split() == reason.split()


def test_a_receive_is_answered_within_its_wait() -> None:
    steps = calls.receive("t", "g", count=3, wait="5s", lease="30s", tags="a", sql="", name="me")
    request = first(steps)
    assert request.wait_s == 5
    assert json.loads(request.body or b"") == {
        "topic": "t", "count": 3, "wait": "5000ms", "lease": "30000ms", "filter": "a", "sql": "",
        "client": "me", "as_text": True,
    }  # fmt: skip


def test_a_pause_is_before_each_repeat() -> None:
    steps = calls.get("t", "k")
    first(steps)
    assert isinstance(steps.send(Failure(Fault.UNTAKEN, "", "http://here", 0.0, 0.1)), Pause)


@pytest.mark.parametrize(
    "content",
    [
        {"verdict": "POSTPONED", "message_id": "A", "ended_ms": "5", "ended_offset": "7", "due_ms": "0"},
        {"verdict": "CANCELLED"},
        {},
    ],
)
def test_an_answer_of_another_version_is_no_missing_broker(content: dict[str, str]) -> None:
    with pytest.raises(AnswerLost, match="another version") as lost:
        answered(calls.cancel("t", "k", ""), content)
    assert "may have been carried out" in str(lost.value)


def test_an_error_with_a_code_of_another_version_has_its_family_and_its_words() -> None:
    content = {"code": "TW-179999", "detail": "", "message": "The moon is full."}
    with pytest.raises(TidewheelError, match="The moon is full") as refused:
        answered(calls.cancel("t", "k", ""), content, 409)
    assert (type(refused.value), refused.value.code) == (RefusedByState, "TW-179999")


@pytest.mark.parametrize(
    ("said", "replaced"), [({"replaced_offset": "7"}, 7), ({"replaced_offset": None}, None)]
)
def test_a_timer_that_replaced_another_says_so(said: dict[str, str | None], replaced: int | None) -> None:
    sent = answered(
        calls.send(NewMessage("orders", "x", delay="1m", key="k"), "", "M"), receipt("M") | said, 201
    )
    assert sent.replaced == replaced
