"""What a refusal says: our words first, then the status' name and what RocketMQ's own server says there."""

from __future__ import annotations

from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import MessageType
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.generated.duration_pb2 import Duration
from services.rpc.generated.timestamp_pb2 import Timestamp
from services.rpc.wire.caller import Caller
from services.rpc.wire.statuses import refusal
from tidewheel.errors import TidewheelError

TOPIC, GROUP = wire.Resource(name="t"), wire.Resource(name="g")


def said(status: Any, code: str, words: str) -> None:
    """Check that a status says so, as `tests` of RocketMQ and ours look for it."""
    assert Code.Name(status.code) == code
    assert status.message.startswith("TW-")
    assert status.message.endswith(f"({code}: {words})"), status.message


@pytest.mark.parametrize(
    ("system", "code", "words"),
    [
        ({"tag": " "}, "ILLEGAL_MESSAGE_TAG", "tag cannot be the char sequence of whitespace"),
        ({"tag": "a|b"}, "ILLEGAL_MESSAGE_TAG", "tag cannot contain '|'"),
        ({"tag": "a\tb"}, "ILLEGAL_MESSAGE_TAG", "tag cannot contain control character"),
        ({"keys": [" "]}, "ILLEGAL_MESSAGE_KEY", "key cannot be the char sequence of whitespace"),
        ({"keys": ["a\n"]}, "ILLEGAL_MESSAGE_KEY", "key cannot contain control character"),
        (
            {"message_group": " "},
            "ILLEGAL_MESSAGE_GROUP",
            "message group cannot be the char sequence of whitespace",
        ),
        ({"message_group": "x" * 64}, "ILLEGAL_MESSAGE_GROUP", "message group exceed the max size 64"),
        ({"message_id": " "}, "ILLEGAL_MESSAGE_ID", "message id cannot be empty"),
        (
            {"delivery_timestamp": Timestamp(seconds=99_999_999_999)},
            "ILLEGAL_DELIVERY_TIME",
            f"the max delay time of message is too large, max is {limits.DELAY_MS_MAX}",
        ),
        (
            {
                "message_type": "TRANSACTION",
                "orphaned_transaction_recovery_duration": Duration(seconds=999_999),
            },
            "BAD_REQUEST",
            "the max transaction recovery time of message is too large, max is 86400",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_message_is_refused_in_rocketmqs_words_too(
    play: Any, system: dict[str, Any], code: str, words: str
) -> None:
    async def scenario(front: Any) -> None:
        said((await front.send("t", **system)).status, code, words)

    play(scenario)


@pytest.mark.parametrize(
    ("user", "code", "words"),
    [
        (
            {"a\n": "1"},
            "ILLEGAL_MESSAGE_PROPERTY_KEY",
            "the key of property cannot contain control character",
        ),
        (
            {"a": "\n"},
            "ILLEGAL_MESSAGE_PROPERTY_KEY",
            "the value of property cannot contain control character",
        ),
        ({"TAGS": "1"}, "ILLEGAL_MESSAGE_PROPERTY_KEY", "property is used by system: TAGS"),
        (
            {str(number): "" for number in range(129)},
            "MESSAGE_PROPERTIES_TOO_LARGE",
            "too many user properties, max is 128",
        ),
        (
            {"a": "x" * 16_384},
            "MESSAGE_PROPERTIES_TOO_LARGE",
            "the total size of user property is too large, max is 16384",
        ),
    ],
    ids=["control in a key", "control in a value", "reserved", "too many", "too large"],
)
def test_properties_are_refused_in_rocketmqs_words_too(
    play: Any, user: dict[str, str], code: str, words: str
) -> None:
    async def scenario(front: Any) -> None:
        message = wire.Message(
            topic=TOPIC,
            body=b"x",
            system_properties=wire.SystemProperties(message_id="1"),
            user_properties=user,
        )
        reply = await front.call("SendMessage", service.SendMessageRequest(messages=[message]))
        said(reply.status, code, words)

    play(scenario)


def test_bodies_topics_and_types_are_refused_in_rocketmqs_words_too(play: Any) -> None:
    async def scenario(front: Any) -> None:
        body_max = limits.BODY_BYTES_MAX
        empty, large = (
            await front.send("t", b""),
            await front.send("t", b"x" * (body_max + 1), message_id="1"),
        )
        said(empty.status, "MESSAGE_BODY_EMPTY", "message body cannot be empty")
        words = f"message body cannot exceed the max {body_max}"
        said(large.status, "MESSAGE_BODY_TOO_LARGE", words)
        for topic, words in (
            ("", "The specified topic is blank"),
            ("a b", "The specified topic contains illegal characters"),
            ("x" * 128, "The specified topic is longer than topic max length 127."),
            ("RMQ_SYS_TRANS_HALF_TOPIC", "cannot access system topic"),
        ):
            said((await front.send(topic)).status, "ILLEGAL_TOPIC", words)
        await front.live.call(front.live.core.topics.create, "orders", MessageType.FIFO, 1)
        words = "TopicMessageType validate failed, the expected type is FIFO, but actual type is NORMAL"
        said((await front.send("orders")).status, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", words)

    play(scenario)


def test_consumers_are_refused_in_rocketmqs_words_too(play: Any) -> None:
    async def scenario(front: Any) -> None:
        for span, words in (
            (
                Duration(nanos=9_999_000_000 % 10**9, seconds=9),
                "the invisibleTime is too small. min is 10000",
            ),
            (Duration(seconds=43_200, nanos=1_000_000), "the invisibleTime is too large. max is 43200000"),
        ):
            [reply] = await front.receive("t", invisible_duration=span)
            said(reply.status, "ILLEGAL_INVISIBLE_TIME", words)
        change = service.ChangeInvisibleDurationRequest(
            group=GROUP, topic=TOPIC, receipt_handle="nonsense", invisible_duration=Duration(seconds=43_201)
        )
        reply = await front.call("ChangeInvisibleDuration", change)
        said(reply.status, "ILLEGAL_INVISIBLE_TIME", "the invisibleTime is too large. max is 43200000")
        change.invisible_duration.seconds = 1
        reply = await front.call("ChangeInvisibleDuration", change)
        said(reply.status, "INVALID_RECEIPT_HANDLE", "receipt handle is expired")
        entries = [service.AckMessageEntry(receipt_handle="nonsense")]
        reply = await front.call("AckMessage", service.AckMessageRequest(entries=entries))
        said(reply.status, "INVALID_RECEIPT_HANDLE", "receipt handle is expired")
        nothing = wire.FilterExpression(expression="||")
        [reply] = await front.receive("t", filter_expression=nothing)
        said(reply.status, "ILLEGAL_FILTER_EXPRESSION", "expression format is not correct")
        [reply] = await front.receive("t")
        assert Code.Name(reply.status.code) == "MESSAGE_NOT_FOUND"
        assert "no new message" in reply.status.message
        reply = await front.call("QueryRoute", service.QueryRouteRequest(topic=TOPIC), Caller(""))
        assert "CLIENT_ID_REQUIRED: client id cannot be empty" in reply.status.message

    play(scenario, invisible_ms_min=10_000)


def test_every_refusal_says_the_name_of_its_status() -> None:
    found, waiting = [], [TidewheelError]
    while waiting:
        found.append(kind := waiting.pop())
        waiting += kind.__subclasses__()
    for kind in found:
        status = refusal(kind("Why."))
        assert status.message.startswith(f"{kind.code} ")
        assert f"({Code.Name(status.code)}" in status.message
