"""Check messages before they are stored."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from commitlog import limits
from commitlog.records.message import Message, MessageType
from services.broker.spine.errors import IllegalLiteTopic, MessageTypeConflict
from services.broker.spine.values import Topic
from tidewheel.errors import ClientMistake
from tidewheel.message_rules import check_delivery as check_delivery
from tidewheel.message_rules import check_said

_LITE_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]+")
_APART: Final = {
    MessageType.PRIORITY: "whose topics have a queue for each priority. "
    "Create one: tidewheel topic create NAME --type priority --queues 10",
    MessageType.LITE: "whose topics hold many lite topics. "
    "Create one: tidewheel topic create NAME --type lite",
}
_MIXED: Final = MessageType.MIXED
_NOT_MIXED: Final = tuple(_APART)

_MADE_BY: Final = {
    MessageType.FIFO: "Give it a message group (send --group; message_group over HTTP)",
    MessageType.DELAY: "Say when it is due (send --in 30m; in over HTTP)",
    MessageType.PRIORITY: "Give it a priority (send --priority 2; priority over HTTP)",
    MessageType.LITE: "Name its lite topic (send --lite-topic; lite_topic over HTTP)",
    MessageType.TRANSACTION: "Send it in a transaction (POST /api/transactions)",
}
"""The instructions for sending a message of each type."""
_EXCLUSIVE: Final = (MessageType.FIFO, MessageType.PRIORITY, MessageType.LITE)


def check_message(message: Message, message_type: MessageType) -> None:
    """Raise a `ClientMistake` for the first illegal part of a message. Do not check the topic."""
    check_said(message)
    if message.check_immunity_ms is not None:
        _check_immunity(message.check_immunity_ms)
    if message.priority is not None:
        _check_priority(message.priority, message_type)
    if message.lite_topic and message_type is not MessageType.LITE:
        raise MessageTypeConflict(
            f"A {message_type.value} message cannot belong to a lite topic too. Leave one of them out."
        )


def check_type(message_type: MessageType, topic: Topic) -> None:
    """Raise `MessageTypeConflict` if a topic does not accept messages of the given type."""
    taken = topic.message_type
    if taken is not message_type and (taken is not _MIXED or message_type in _NOT_MIXED):
        _refuse_type(message_type, topic)


def check_lite_topic(name: str, bytes_max: int) -> None:
    """Raise `IllegalLiteTopic` if a lite topic name is illegal."""
    if not _LITE_TOPIC.fullmatch(name) or len(name) > bytes_max:
        raise IllegalLiteTopic(
            f"{name[:bytes_max]!r} must have 1 to {bytes_max} letters, digits, '_' or '-', not {len(name)}."
        )


def _check_immunity(immunity_ms: int) -> None:
    if not 0 <= immunity_ms <= limits.CHECK_IMMUNITY_MS_MAX:
        raise ClientMistake(
            f"A half may be left alone for {limits.CHECK_IMMUNITY_MS_MAX // 3_600_000} hours at most, "
            f"not for {immunity_ms / 1000:.0f} s.",
            "the max transaction recovery time of message is too large, "
            f"max is {limits.CHECK_IMMUNITY_MS_MAX // 1_000}",
        )


def _check_priority(priority: int, message_type: MessageType) -> None:
    if priority < 0:
        raise ClientMistake(f"A priority counts from 0, the lowest; {priority} is none.")
    if message_type is not MessageType.PRIORITY:
        raise MessageTypeConflict(
            f"A {message_type.value} message cannot have a priority too. Leave one of them out."
        )


def _suggest_correction(sent: MessageType, taken: MessageType) -> str:
    """Return a suggestion for a message type that the topic does not accept."""
    if sent is MessageType.NORMAL and taken in _MADE_BY:
        return f"{_MADE_BY[taken]}, or name a topic of type NORMAL or MIXED."
    both = f"A message is not {taken.value} and {sent.value} at once. " if taken in _EXCLUSIVE else ""
    kind = sent.value.lower()
    mixed = "" if sent in _APART else " or mixed"
    return f"{both}Name a topic of type {kind}{mixed}; create one: tidewheel topic create NAME --type {kind}"


def _refuse_type(message_type: MessageType, topic: Topic) -> NoReturn:
    if topic.message_type is _MIXED:
        raise MessageTypeConflict(
            f"{topic.name!r} takes every type but PRIORITY and LITE, {_APART[message_type]}"
        )
    raise MessageTypeConflict(
        f"{topic.name!r} takes {topic.message_type.value} messages, this one is {message_type.value}. "
        f"{_suggest_correction(message_type, topic.message_type)}",
        f"TopicMessageType validate failed, the expected type is {topic.message_type.value}, "
        f"but actual type is {message_type.value}",
    )
