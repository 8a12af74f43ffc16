"""The conversation: what is repeated, what is given up, and what each failure is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.client.exchange import (
    PAUSES_S,
    REPEAT_SECONDS,
    Answer,
    Failure,
    Fault,
    Pause,
    Reply,
    Request,
    asked,
    is_unknown,
)
from tidewheel.errors import (
    AccessRefused,
    AnswerLate,
    AnswerLost,
    BrokerUnreachable,
    Busy,
    ClientMistake,
    IllegalKey,
    InvalidReceiptHandle,
    NotFound,
    RefusedByState,
    TidewheelError,
    TransactionEnded,
)

WHERE = "http://127.0.0.1:8088"
SAFE, UNSAFE = Request("POST", "/safe", b"{}", is_repeatable=True), Request("POST", "/unsafe", b"{}")


def answer(status: int, content: object, begun_s: float = 0.0, seconds: float = 0.1) -> Answer:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Answer(status, body, WHERE, begun_s, begun_s + seconds)


def failure(fault: Fault, begun_s: float = 0.0, seconds: float = 0.1) -> Failure:
    return Failure(fault, "reset", WHERE, begun_s, begun_s + seconds)


def error(status: int, code: str) -> Answer:
    return answer(status, {"code": code, "detail": "the detail", "message": "The message."})


def converse(request: Request, replies: Callable[[int], Reply], *statuses: int) -> tuple[int, object]:
    """Run a conversation; return how often it asked, and its value or error."""
    steps = asked(request, lambda status, content: (status, content), *statuses)
    count, reply = 0, None
    try:
        while True:
            step = steps.send(reply)
            reply = None
            if not isinstance(step, Pause):
                assert step is request
                reply = replies(count)
                count += 1
    except StopIteration as end:
        return count, end.value
    except TidewheelError as refused:
        return count, refused


ALL_TRIES = len(PAUSES_S) + 1


@pytest.mark.parametrize(
    ("request_", "reply", "tries", "kind"),
    [
        (SAFE, failure(Fault.UNTAKEN), ALL_TRIES, BrokerUnreachable),
        (UNSAFE, failure(Fault.UNTAKEN), ALL_TRIES, BrokerUnreachable),
        (SAFE, failure(Fault.CUT), ALL_TRIES, AnswerLost),
        (UNSAFE, failure(Fault.CUT), 1, AnswerLost),
        (SAFE, failure(Fault.LATE), 1, AnswerLate),
        (UNSAFE, failure(Fault.LATE), 1, AnswerLate),
        (SAFE, error(503, "TW-220"), ALL_TRIES, Busy),
        (UNSAFE, error(503, "TW-171"), 1, Busy),
        (SAFE, error(400, "TW-134"), 1, IllegalKey),
        (SAFE, error(400, "TW-149"), 1, ClientMistake),
        (SAFE, error(401, "TW-181"), 1, AccessRefused),
        (SAFE, error(403, "TW-182"), 1, AccessRefused),
        (SAFE, error(404, "TW-151"), 1, NotFound),
        (SAFE, error(409, "TW-162"), 1, RefusedByState),
        (SAFE, error(409, "TW-161"), 1, TransactionEnded),
        (SAFE, error(400, "TW-146"), 1, InvalidReceiptHandle),
        (SAFE, error(500, "TW-100"), 1, TidewheelError),
        (SAFE, error(500, "TW-999"), 1, TidewheelError),
        (SAFE, answer(502, b"<html>Bad gateway"), ALL_TRIES, AnswerLost),
        (UNSAFE, answer(504, b"<html>Timeout"), 1, AnswerLost),
        (SAFE, answer(404, {"detail": "Not Found"}), 1, BrokerUnreachable),
        (SAFE, answer(200, b"<html>welcome"), 1, BrokerUnreachable),
        (SAFE, answer(200, b"\xff"), 1, BrokerUnreachable),
        (SAFE, answer(200, b"[" * 200_000), 1, BrokerUnreachable),
        (SAFE, answer(301, b""), 1, BrokerUnreachable),
    ],
)
def test_a_failure_is_repeated_only_where_that_is_safe_and_ends_as_one_error(
    request_: Request, reply: Reply, tries: int, kind: type[TidewheelError]
) -> None:
    count, found = converse(request_, lambda _: reply)
    assert count == tries
    assert type(found) is kind
    assert isinstance(found, TidewheelError)
    assert found.__context__ is None


def test_an_error_has_the_brokers_words_and_code() -> None:
    _, found = converse(SAFE, lambda _: error(404, "TW-151"))
    assert isinstance(found, NotFound)
    assert (str(found), found.code, found.detail) == ("The message.", "TW-151", "the detail")


def test_a_verdict_is_an_answer_whatever_its_status_and_an_error_is_not() -> None:
    assert converse(UNSAFE, lambda _: answer(409, {"verdict": "TOO_LATE"}), 409)[1] == (
        409,
        {"verdict": "TOO_LATE"},
    )
    assert isinstance(converse(UNSAFE, lambda _: error(409, "TW-162"), 409)[1], RefusedByState)


@given(st.integers(0, ALL_TRIES - 1))
def test_a_broker_that_comes_back_answers(failures: int) -> None:
    replies = [failure(Fault.UNTAKEN)] * failures + [answer(200, {})]
    assert converse(UNSAFE, replies.__getitem__) == (failures + 1, (200, {}))


TRIES = st.tuples(
    st.sampled_from([Fault.UNTAKEN, Fault.CUT, "TW-171", "TW-220"]), st.floats(0, REPEAT_SECONDS)
)


@given(st.lists(TRIES, min_size=ALL_TRIES, max_size=ALL_TRIES), st.sampled_from([SAFE, UNSAFE]))
def test_a_call_that_may_have_been_carried_out_is_not_sent_too_late_and_never_denied(
    tries: list[tuple[Any, float]], request_: Request
) -> None:
    begun: list[float] = []

    def replied(number: int) -> Reply:
        fault, seconds = tries[number]
        begun.append(begun[-1] + tries[number - 1][1] + PAUSES_S[number - 1] if begun else 0.0)
        if isinstance(fault, Fault):
            return failure(fault, begun[-1], seconds)
        refused = {"code": fault, "detail": "", "message": "The message."}
        return answer(503, refused, begun[-1], seconds)

    count, found = converse(request_, replied)
    faults = [fault for fault, _ in tries[:count]]
    uncertain = [number for number, fault in enumerate(faults) if fault in (Fault.CUT, "TW-171")]
    if uncertain:
        assert request_.is_repeatable or uncertain == [count - 1]
        assert uncertain[0] == count - 1 or begun[-1] <= REPEAT_SECONDS + 1e-6
        assert isinstance(found, TidewheelError)
        assert is_unknown(found), "it may have been carried out"


@given(st.integers(100, 599), st.binary() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(
        st.sampled_from(["code", "message", "detail", "verdict"]) | st.text(), one), max_leaves=6,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_no_answer_of_a_stranger_is_anything_but_one_error(status: int, body: bytes) -> None:
    def reader(_: int, content: Any) -> str:
        return str(content["message_id"]["x"])

    steps = asked(UNSAFE, reader, 404, 409)
    next(steps)
    with pytest.raises(TidewheelError):
        steps.send(answer(status, body))
