"""The operations of transactions: the requests that they build, and the values that they read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.tidewheel.client.test_calls import answered, first
from tidewheel.client import halves
from tidewheel.client.halves import Begun, Question
from tidewheel.client.values import NewMessage
from tidewheel.errors import ClientMistake, TransactionEnded


def test_a_half_is_a_message_with_the_barriers_property() -> None:
    message = NewMessage("orders", {"id": 7}, delay="30m", key="order:7", properties={"by": "me"})
    request = first(halves.begin(message, "ns", "ID", {"TW_BARRIER": "db"}))
    assert (request.method, request.path, request.is_repeatable) == ("POST", "/api/transactions", True)
    said = json.loads(request.body or b"")
    assert said["properties"] == {"by": "me", "content-type": "application/json", "TW_BARRIER": "db"}
    assert (said["topic"], said["in"], said["timer_key"], said["idempotency_key"]) == (
        "ns%orders",
        "1800000ms",
        "order:7",
        "ID",
    )
    begun = answered(
        halves.begin(message, "", "ID", {}), {"message_id": "ID", "transaction_id": "T", "recall_handle": ""}
    )
    assert begun == Begun("ID", "T")


def test_what_cannot_be_sent_is_refused_before_the_first_request() -> None:
    with pytest.raises(ClientMistake):
        halves.begin(NewMessage("orders", "x", delay="30"), "", "ID", {})


@pytest.mark.parametrize("how", ["commit", "rollback", "unknown"])
def test_an_end_is_repeatable(how: Any) -> None:
    request = first(halves.end("a/b", how))
    assert (request.path, request.is_repeatable) == (f"/api/transactions/a%2Fb/{how}", True)
    assert answered(halves.end("T", how), {"transaction_id": "T"}) is None


def test_the_other_end_is_refused() -> None:
    with pytest.raises(TransactionEnded):
        answered(halves.end("T", "commit"), {"code": "TW-161", "message": "It has ended.", "detail": ""}, 409)


def test_questions_are_read() -> None:
    poll = halves.check_backs(["a", "b"], count=3, wait="20s", name="me")
    request = first(poll)
    assert (request.path, request.wait_s, request.is_repeatable) == (
        "/api/transactions/check-backs",
        20.0,
        True,
    )
    said = {"topics": ["a", "b"], "count": 3, "wait": "20000ms", "client": "me"}
    assert json.loads(request.body or b"") == said
    message = {"message_id": "M", "properties": {"TW_BARRIER": "db"}, "body": "x"}
    questions = {"questions": [{"transaction_id": "T", "topic": "a", "message": message}]}
    poll = halves.check_backs(["a"], count=3, wait="0s", name="me")
    assert answered(poll, questions) == [Question("T", "M", {"TW_BARRIER": "db"})]
