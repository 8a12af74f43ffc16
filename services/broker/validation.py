"""What a message must be before it is stored; limits and codes are those of RocketMQ's reference server."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from commitlog import limits, properties
from commitlog.message import Message, MessageType
from services.broker.errors import (
    IllegalDeliveryTime,
    IllegalKey,
    IllegalLiteTopic,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalProperty,
    IllegalTag,
    MessageTypeConflict,
    PropertiesTooLarge,
)
from services.broker.values import Topic
from tidewheel.errors import BodyEmpty, BodyTooLarge, ClientMistake

_LITE_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_REFUSED: Final = properties.RESERVED | {""}
_CHARACTER_BYTES_MAX: Final = 4
_BLANK: Final = "be the char sequence of whitespace"
_APART: Final = {
    MessageType.PRIORITY: "whose topics have a queue for each priority. "
    "Create one: tidewheel topic create NAME --type priority --queues 10",
    MessageType.LITE: "whose topics hold many lite topics. "
    "Create one: tidewheel topic create NAME --type lite",
}


def check_message(message: Message, message_type: MessageType) -> None:
    """Raise the `ClientMistake` that fits the first thing wrong with a message, wherever it goes."""
    if not 0 < len(message.body) <= limits.BODY_BYTES_MAX:
        _refuse_body(message.body)
    _check_texts(message)
    if message.properties:
        _check_properties(message.properties)
    if message.check_immunity_ms is not None:
        _check_immunity(message.check_immunity_ms)
    if message.priority is not None:
        _check_priority(message.priority, message_type)
    if message.lite_topic and message_type is not MessageType.LITE:
        raise MessageTypeConflict(
            f"A {message_type.value} message cannot belong to a lite topic too. Leave one of them out."
        )


def check_delivery(delivery_ms: int, delay_ms_max: int, now_ms: int) -> None:
    """Raise `IllegalDeliveryTime` for a time that is none, or too far ahead."""
    if not 0 <= delivery_ms <= now_ms + delay_ms_max:
        raise IllegalDeliveryTime(
            f"It is due in {(delivery_ms - now_ms) / 1000:.0f} s, the limit is {delay_ms_max // 1000} s. "
            "Were milliseconds given where seconds were meant?",
            f"the max delay time of message is too large, max is {delay_ms_max}",
        )


def check_type(message_type: MessageType, topic: Topic) -> None:
    """Raise `MessageTypeConflict` unless a topic takes messages of a type."""
    if topic.message_type is not message_type:
        _check_mixed(message_type, topic)


def check_lite_topic(name: str, bytes_max: int) -> None:
    """Raise `IllegalLiteTopic` unless a lite topic may have this name."""
    if not _LITE_TOPIC.fullmatch(name) or len(name) > bytes_max:
        raise IllegalLiteTopic(
            f"{name[:bytes_max]!r} must have 1 to {bytes_max} letters, digits, '_' or '-', not {len(name)}."
        )


def _refuse_body(body: bytes) -> NoReturn:
    if not body:
        raise BodyEmpty("Send at least one byte.")
    raise BodyTooLarge(
        f"It has {len(body)} bytes, the limit is {limits.BODY_BYTES_MAX}.",
        f"message body cannot exceed the max {limits.BODY_BYTES_MAX}",
    )


def _check_texts(message: Message) -> None:
    """Check all that the user wrote but the body.

    What is printable as a whole has no control characters: one quick test for nearly every message.
    """
    given, message_id, tag, group = message.properties, message.message_id, message.tag, message.message_group
    if not message_id.strip() or len(message_id) > limits.MESSAGE_ID_CHARACTERS_MAX:
        raise IllegalMessageId(f"{message_id!r} is empty or too long.", "message id cannot be empty")
    whole = "".join((message_id, group, tag, message.trace_context, *message.keys, *given, *given.values()))
    if not whole.isprintable():
        _check_controls(message)
    if tag and (not tag.strip() or "|" in tag):
        wrong = "contain '|'" if "|" in tag else _BLANK
        raise IllegalTag(f"{tag[:100]!r} must not be blank nor hold '|'.", f"tag cannot {wrong}")
    for key in message.keys:
        if not key.strip():
            raise IllegalKey(f"{key!r} must not be blank.", f"key cannot {_BLANK}")
    if group:
        _check_group(group)
    is_surely_small = len(whole) <= limits.PROPERTIES_USER_BYTES_MAX // _CHARACTER_BYTES_MAX
    if (
        not is_surely_small
        and len(whole[len(message_id + group) :].encode()) > limits.PROPERTIES_USER_BYTES_MAX
    ):
        raise PropertiesTooLarge(
            f"Properties, tag, keys, trace context may have {limits.PROPERTIES_USER_BYTES_MAX} bytes in all.",
            f"the total size of user property is too large, max is {limits.PROPERTIES_USER_BYTES_MAX}",
        )


def _check_controls(message: Message) -> None:
    found: list[tuple[type[ClientMistake], str, str]] = [
        (IllegalMessageId, "message id", message.message_id),
        (IllegalTag, "tag", message.tag),
        *((IllegalKey, "key", key) for key in message.keys),
        (IllegalMessageGroup, "message group", message.message_group),
        (IllegalProperty, "trace context", message.trace_context),
        *((IllegalProperty, "the key of property", name) for name in message.properties),
        *((IllegalProperty, "the value of property", text) for text in message.properties.values()),
    ]
    for error, what, text in found:
        if _CONTROL.search(text):
            raise error(
                f"{text!r} must not hold control characters.", f"{what} cannot contain control character"
            )


def _check_group(message_group: str) -> None:
    if not message_group.strip():
        raise IllegalMessageGroup(f"{message_group!r} must not be blank.", f"message group cannot {_BLANK}")
    if len(message_group.encode()) > limits.MESSAGE_GROUP_BYTES_MAX:
        raise IllegalMessageGroup(
            f"It has more than {limits.MESSAGE_GROUP_BYTES_MAX} bytes.",
            f"message group exceed the max size {limits.MESSAGE_GROUP_BYTES_MAX + 1}",
        )


def _check_properties(given: dict[str, str]) -> None:
    if len(given) > limits.PROPERTIES_USER_COUNT_MAX:
        raise PropertiesTooLarge(
            f"A message has at most {limits.PROPERTIES_USER_COUNT_MAX} properties.",
            f"too many user properties, max is {limits.PROPERTIES_USER_COUNT_MAX}",
        )
    if not _REFUSED.isdisjoint(given):
        name = next(name for name in given if name in _REFUSED)
        raise IllegalProperty(
            f"{name!r} is empty or reserved for the broker. Choose another name.",
            f"property is used by system: {name}",
        )
    if properties.TIMER_KEY in given or properties.TIMER_UNIQUE in given:
        _check_timer_key(given)


def _check_timer_key(given: dict[str, str]) -> None:
    """Refuse a key or a "unique" that is not what it seems: nobody could name the timer that it sets."""
    key, unique = given.get(properties.TIMER_KEY), given.get(properties.TIMER_UNIQUE)
    if key is not None and (not key.strip() or len(key) > limits.TIMER_NAME_CHARACTERS_MAX):
        raise IllegalKey(
            f"{properties.TIMER_KEY} has {len(key)} characters; give 1 to {limits.TIMER_NAME_CHARACTERS_MAX}."
        )
    if unique is not None and (key is None or unique.lower() not in ("true", "false")):
        raise IllegalProperty(
            f"{properties.TIMER_UNIQUE} must be true or false, and stand beside {properties.TIMER_KEY}."
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


def _check_mixed(message_type: MessageType, topic: Topic) -> None:
    if topic.message_type is not MessageType.MIXED:
        raise MessageTypeConflict(
            f"{topic.name!r} takes {topic.message_type.value} messages, this one is {message_type.value}.",
            f"TopicMessageType validate failed, the expected type is {topic.message_type.value}, "
            f"but actual type is {message_type.value}",
        )
    if message_type is MessageType.PRIORITY or message_type is MessageType.LITE:
        raise MessageTypeConflict(
            f"{topic.name!r} takes every type but PRIORITY and LITE, {_APART[message_type]}"
        )
