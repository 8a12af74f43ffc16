"""Validation rules for messages. The broker applies these rules, and user processes can apply them earlier.

The outbox validates messages before it stores them, because a row that the broker refuses would block later
rows. Limits and error codes are those of RocketMQ's reference server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NoReturn, Protocol

from tidewheel import property_names
from tidewheel.durations import away, span_text
from tidewheel.errors import (
    BodyEmpty,
    BodyTooLarge,
    ClientMistake,
    IllegalDeliveryTime,
    IllegalKey,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalProperty,
    IllegalTag,
    IllegalTopic,
    PropertiesTooLarge,
)

TOPIC_CHARACTERS_MAX = 127
BODY_BYTES_MAX = 4 * 1024 * 1024
ELSEWHERE: Final = "Keep what is larger in a file or an object store, and send where it is."
PROPERTIES_USER_BYTES_MAX = 16 * 1024
PROPERTIES_USER_COUNT_MAX = 128
MESSAGE_GROUP_BYTES_MAX = 63
MESSAGE_ID_CHARACTERS_MAX = 128
WALL_MS_MIN = 100_000_000_000
TIME_DIGITS_MAX = 18
DELAY_MS_MAX = 10 * 366 * 86_400_000
TIMER_NAME_CHARACTERS_MAX = 128

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
SYSTEM_PREFIXES: Final = ("TW_SYS_", "RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_", "%RETRY%", "TBW102")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_REFUSED: Final = property_names.RESERVED | {""}
_CHARACTER_BYTES_MAX: Final = 4
_BLANK: Final = "be the char sequence of whitespace"


class Said(Protocol):
    """The parts of a message that are set by the user."""

    @property
    def body(self) -> bytes: ...
    @property
    def message_id(self) -> str: ...
    @property
    def tag(self) -> str: ...
    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def message_group(self) -> str: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def trace_context(self) -> str: ...


def is_system(name: str) -> bool:
    """Return whether a topic is an internal topic of the broker, which clients can neither write nor read."""
    return name.startswith(SYSTEM_PREFIXES)


def key_lengths(keys: Sequence[str]) -> str:
    """Return the length of each key in characters, separated by blanks, if a key contains a blank.

    Otherwise, return an empty string.

    The lengths are stored with the keys, which are joined by blanks (`property_names.KEY_LENGTHS`).
    """
    return " ".join([str(len(key)) for key in keys]) if " " in "".join(keys) else ""


def check_topic_name(name: str) -> None:
    """Raise `IllegalTopic` if clients may not use this name."""
    if not _TOPIC.fullmatch(name):
        if not name.strip():
            raise IllegalTopic(f"Its name is {'blank' if name else 'empty'}.", "The specified topic is blank")
        raise IllegalTopic(
            f"{name!r} may hold only a-z, A-Z, 0-9, '_', '-', '%' and '|'.",
            "The specified topic contains illegal characters",
        )
    if len(name) > TOPIC_CHARACTERS_MAX:
        raise IllegalTopic(
            f"It has {len(name)} characters, the limit is {TOPIC_CHARACTERS_MAX}.",
            f"The specified topic is longer than topic max length {TOPIC_CHARACTERS_MAX}.",
        )
    if is_system(name):
        raise IllegalTopic(
            f"{name!r} is one of the broker's own topics. Choose another name.", "cannot access system topic"
        )


def check_said(message: Said) -> None:
    """Validate the user's parts of a message; raise a `ClientMistake` for the first error."""
    if not 0 < len(message.body) <= BODY_BYTES_MAX:
        _refuse_body(message.body)
    _check_texts(message)
    if message.properties:
        _check_properties(message.properties)


def check_delivery(delivery_ms: int, delay_ms_max: int, now_ms: int) -> None:
    """Raise `IllegalDeliveryTime` if a time is negative or too far in the future."""
    if not 0 <= delivery_ms <= now_ms + delay_ms_max:
        raise IllegalDeliveryTime(
            f"It is due {away(delivery_ms - now_ms)}, the limit is {span_text(delay_ms_max)}. "
            "Were milliseconds given where seconds were meant?",
            f"the max delay time of message is too large, max is {delay_ms_max}",
        )


def _refuse_body(body: bytes) -> NoReturn:
    if not body:
        raise BodyEmpty("Send at least one byte.")
    raise BodyTooLarge(
        f"It has {len(body)} bytes, the limit is {BODY_BYTES_MAX}. {ELSEWHERE}",
        f"message body cannot exceed the max {BODY_BYTES_MAX}",
    )


def _check_texts(message: Said) -> None:
    """Validate all texts of a message except the body.

    A text that is printable as a whole contains no control characters, so most messages require only one
    test.
    """
    given, message_id, tag, group = message.properties, message.message_id, message.tag, message.message_group
    if not message_id.strip() or len(message_id) > MESSAGE_ID_CHARACTERS_MAX:
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
    # In addition to its characters, such a key takes six bytes: a separator, four digits of its length, and
    # another separator.
    is_surely_small = len(whole) + 2 * len(message.keys) <= PROPERTIES_USER_BYTES_MAX // _CHARACTER_BYTES_MAX
    if not is_surely_small:
        _check_total(len(whole[len(message_id + group) :].encode()), message.keys)


def _check_total(text_bytes: int, keys: Sequence[str]) -> None:
    """Refuse texts whose total size is too large, including the overhead of the stored keys."""
    between_bytes = max(0, len(keys) - 1)
    total_bytes = text_bytes + between_bytes + len(key_lengths(keys))
    if total_bytes > PROPERTIES_USER_BYTES_MAX:
        raise PropertiesTooLarge(
            f"Properties, tag, keys, trace context have {total_bytes} bytes, the limit is "
            f"{PROPERTIES_USER_BYTES_MAX} in all. A key counts one byte more, and, if any key holds a blank, "
            "the digits of its length and another byte. Send fewer or shorter ones.",
            f"the total size of user property is too large, max is {PROPERTIES_USER_BYTES_MAX}",
        )


def _check_controls(message: Said) -> None:
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
    if len(message_group.encode()) > MESSAGE_GROUP_BYTES_MAX:
        raise IllegalMessageGroup(
            f"It has more than {MESSAGE_GROUP_BYTES_MAX} bytes.",
            f"message group exceed the max size {MESSAGE_GROUP_BYTES_MAX + 1}",
        )


def _check_properties(given: dict[str, str]) -> None:
    if len(given) > PROPERTIES_USER_COUNT_MAX:
        raise PropertiesTooLarge(
            f"A message has at most {PROPERTIES_USER_COUNT_MAX} properties.",
            f"too many user properties, max is {PROPERTIES_USER_COUNT_MAX}",
        )
    if not _REFUSED.isdisjoint(given):
        name = next(name for name in given if name in _REFUSED)
        raise IllegalProperty(
            f"{name!r} is empty or reserved for the broker. Choose another name.",
            f"property is used by system: {name}",
        )
    if property_names.TIMER_KEY in given or property_names.TIMER_UNIQUE in given:
        _check_timer_key(given)


def _check_timer_key(given: dict[str, str]) -> None:
    """Refuse an invalid timer key or `unique` flag, because the timer could not be referenced later."""
    key, unique = given.get(property_names.TIMER_KEY), given.get(property_names.TIMER_UNIQUE)
    if key is not None and (not key.strip() or len(key) > TIMER_NAME_CHARACTERS_MAX):
        raise IllegalKey(
            f"{property_names.TIMER_KEY} has {len(key)} characters; give 1 to {TIMER_NAME_CHARACTERS_MAX}."
        )
    if unique is not None and (key is None or unique.lower() not in ("true", "false")):
        raise IllegalProperty(
            f"{property_names.TIMER_UNIQUE} must be true or false, "
            f"and stand beside {property_names.TIMER_KEY}."
        )
