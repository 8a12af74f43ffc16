"""Replies that are decided at once, and written in bytes where one is written for every call.

(Protocol Buffers' encoding: a varint is base 128, lowest 7 bits first, the top bit set on all but the last.)
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Final, NamedTuple

from commitlog.limits import ENTRIES_PER_REQUEST_MAX
from tidewheel.errors import ClientMistake


class Decided(NamedTuple):
    """What was decided of a call: the log offset that must be durable before its reply, in bytes, is told.

    `code` is the name of the reply's status code; `then` is done when the reply is told.
    """

    durable_at: int
    reply: bytes
    code: str = "OK"
    then: Callable[[], None] | None = None


def check_count(entries: Sized) -> None:
    """Raise `ClientMistake` for no entry at all, and for so many that they would keep others waiting."""
    if not entries:
        raise ClientMistake("It holds no entry.")
    if len(entries) > ENTRIES_PER_REQUEST_MAX:
        raise ClientMistake(f"It holds {len(entries)} entries, at most {ENTRIES_PER_REQUEST_MAX} may be.")


def text_field(tag: bytes, text: str) -> bytes:
    """Return the bytes of a field of text behind its tag (field number, wire type 2); none if it is empty."""
    return field(tag, text.encode()) if text else b""


def field(tag: bytes, content: bytes) -> bytes:
    """Return the bytes of a field behind its tag and its length."""
    length = len(content)
    return tag + (_SMALL[length] if length < _SMALL_BELOW else varint(length)) + content


def varint(number: int) -> bytes:
    """Return the bytes of a number, 0 or more."""
    if number < _SMALL_BELOW:
        return _SMALL[number]
    return _varint(number)


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    return bytes((number & 127 | 128,)) + _varint(number >> 7)


_SMALL_BELOW: Final = 4_096
_SMALL: Final = [_varint(number) for number in range(_SMALL_BELOW)]
"""Nearly all lengths and offsets of a delivery: 200 KB, which spare it 2 % of its time."""
