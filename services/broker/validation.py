"""What a message must be before it is stored; limits and codes are those of RocketMQ's reference server."""

from __future__ import annotations

import re
from typing import Final

from commitlog import limits, properties
from commitlog.errors import (
    BodyEmpty,
    BodyTooLarge,
    ClientMistake,
    IllegalDeliveryTime,
    IllegalKey,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalProperty,
    IllegalTag,
    MessageTypeConflict,
    PropertiesTooLarge,
)
from commitlog.message import Message, MessageType
from services.broker.values import Topic

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_message(message: Message, topic: Topic, delay_ms_max: int, now_ms: int) -> None:
    """Raises the `ClientMistake` that fits the first thing wrong with a message for `topic`."""
    _check_body(message.body)
    _check_id(message.message_id)
    _check_tag(message.tag)
    for key in message.keys:
        _check_key(key)
    _check_group(message.message_group)
    _check_properties(message)
    _check_timer_key(message.properties)
    _check_delivery(message.delivery_ms, delay_ms_max, now_ms)
    _check_immunity(message.check_immunity_ms)
    _check_priority(message)
    _check_type(message.message_type, topic)


def _check_body(body: bytes) -> None:
    if not body:
        raise BodyEmpty("Send at least one byte.")
    if len(body) > limits.BODY_BYTES_MAX:
        raise BodyTooLarge(f"It has {len(body)} bytes, the limit is {limits.BODY_BYTES_MAX}.")


def _check_id(message_id: str) -> None:
    if (
        not message_id.strip()
        or len(message_id) > limits.MESSAGE_ID_CHARACTERS_MAX
        or _has_control(message_id)
    ):
        raise IllegalMessageId(f"{message_id!r} is empty, too long or has control characters.")


def _check_tag(tag: str) -> None:
    if tag and (not tag.strip() or "|" in tag or _has_control(tag)):
        raise IllegalTag(f"{tag!r} must not be blank nor hold '|' or control characters.")


def _check_key(key: str) -> None:
    if not key.strip() or _has_control(key):
        raise IllegalKey(f"{key!r} must not be blank nor hold control characters.")


def _check_group(message_group: str) -> None:
    if not message_group:
        return
    if not message_group.strip() or _has_control(message_group):
        raise IllegalMessageGroup(f"{message_group!r} must not be blank nor hold control characters.")
    if len(message_group.encode()) > limits.MESSAGE_GROUP_BYTES_MAX:
        raise IllegalMessageGroup(f"It has more than {limits.MESSAGE_GROUP_BYTES_MAX} bytes.")


def _check_properties(message: Message) -> None:
    if len(message.properties) > limits.PROPERTIES_USER_COUNT_MAX:
        raise PropertiesTooLarge(f"A message has at most {limits.PROPERTIES_USER_COUNT_MAX} properties.")
    for name, value in message.properties.items():
        if not name or name in properties.RESERVED:
            raise IllegalProperty(f"{name!r} is empty or reserved for the broker. Choose another name.")
        if _has_control(name) or _has_control(value):
            raise IllegalProperty(f"{name!r} or its value holds control characters.")
    if not _is_surely_small(message) and _user_bytes(message) > limits.PROPERTIES_USER_BYTES_MAX:
        raise PropertiesTooLarge(
            f"Properties, tag and keys together may have {limits.PROPERTIES_USER_BYTES_MAX} bytes."
        )


def _check_timer_key(given: dict[str, str]) -> None:
    """A key or a "unique" that is not what it seems must not set a timer that nobody can name."""
    key, unique = given.get(properties.TIMER_KEY), given.get(properties.TIMER_UNIQUE)
    if key is not None and (not key.strip() or len(key) > limits.TIMER_NAME_CHARACTERS_MAX):
        raise IllegalKey(
            f"{properties.TIMER_KEY} has {len(key)} characters; give 1 to {limits.TIMER_NAME_CHARACTERS_MAX}."
        )
    if unique is not None and (key is None or unique.lower() not in ("true", "false")):
        raise IllegalProperty(
            f"{properties.TIMER_UNIQUE} must be true or false, and stand beside {properties.TIMER_KEY}."
        )


def _check_delivery(delivery_ms: int | None, delay_ms_max: int, now_ms: int) -> None:
    if delivery_ms is None:
        return
    if delivery_ms < 0 or delivery_ms - now_ms > delay_ms_max:
        raise IllegalDeliveryTime(
            f"It is due in {(delivery_ms - now_ms) / 1000:.0f} s, the limit is {delay_ms_max // 1000} s. "
            "Were milliseconds given where seconds were meant?"
        )


def _check_immunity(immunity_ms: int | None) -> None:
    if immunity_ms is not None and not 0 <= immunity_ms <= limits.CHECK_IMMUNITY_MS_MAX:
        raise ClientMistake(
            f"A half may be left alone for {limits.CHECK_IMMUNITY_MS_MAX // 3_600_000} hours at most, "
            f"not for {immunity_ms / 1000:.0f} s."
        )


def _check_priority(message: Message) -> None:
    if message.priority is None:
        return
    if message.priority < 0:
        raise ClientMistake(f"A priority counts from 0, the lowest; {message.priority} is none.")
    if message.message_type is not MessageType.PRIORITY:
        raise MessageTypeConflict(
            f"A {message.message_type.value} message cannot have a priority too. Leave one of them out."
        )


def _check_type(message_type: MessageType, topic: Topic) -> None:
    if message_type is MessageType.PRIORITY and topic.message_type is MessageType.MIXED:
        raise MessageTypeConflict(
            f"{topic.name!r} takes every type but PRIORITY, whose topics have a queue for each priority. "
            "Create one: tidewheel topic create NAME --type priority --queues 10"
        )
    if topic.message_type not in (MessageType.MIXED, message_type):
        raise MessageTypeConflict(
            f"{topic.name!r} takes {topic.message_type.value} messages, this one is {message_type.value}."
        )


def _is_surely_small(message: Message) -> bool:
    """Whether the user's texts keep the limit even at four bytes a character."""
    return 4 * sum(map(len, _user_texts(message))) <= limits.PROPERTIES_USER_BYTES_MAX


def _user_bytes(message: Message) -> int:
    return sum(len(text.encode()) for text in _user_texts(message))


def _user_texts(message: Message) -> list[str]:
    return [message.tag, *message.keys, *message.properties, *message.properties.values()]


def _has_control(text: str) -> bool:
    return not text.isprintable() and _CONTROL.search(text) is not None
