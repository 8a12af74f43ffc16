"""Encode and decode recall handles of delayed messages: `v1 topic broker due_ms message_id` in base64url.

The format is that of `RecallMessageHandle.HandleV1` in RocketMQ. Only the last field may contain spaces.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from commitlog import limits
from services.broker.spine.errors import InvalidRecallHandle

_VERSION: Final = "v1"
_FIELD_COUNT: Final = 5
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


class RecallFields(NamedTuple):
    """The fields of a recall handle. `due_ms` is in milliseconds since the Unix epoch."""

    topic: str
    due_ms: int
    message_id: str


def encode(topic: str, due_ms: int, message_id: str, broker_name: str) -> str:
    """Return the recall handle of a delayed message."""
    fields = f"{_VERSION} {topic} {broker_name} {due_ms} {message_id}"
    return binascii.b2a_base64(fields.encode(), newline=False).translate(_URL_SAFE).decode()


def decode(handle: str) -> RecallFields:
    """Return the fields of a recall handle. Raise `InvalidRecallHandle` if the handle is malformed."""
    try:
        fields = base64.b64decode(handle.encode(), altchars=b"-_", validate=True).decode().split(" ", 4)
    except (binascii.Error, UnicodeError, ValueError):
        fields = []
    if (
        len(fields) != _FIELD_COUNT
        or fields[0] != _VERSION
        or not fields[3].isascii()
        or not fields[3].isdigit()
        or len(fields[4]) > limits.MESSAGE_ID_CHARACTERS_MAX
    ):
        raise InvalidRecallHandle("Use the recall handle of the delayed message's own send receipt.")
    return RecallFields(topic=fields[1], due_ms=int(fields[3]), message_id=fields[4])
