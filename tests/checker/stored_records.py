"""Parser of the CommitLog records in BYTES, and their meaning.

at     width   field (with an IPv6 host, sys_flag 0x10 or 0x20, that host has 20 bytes, not 8)
0      4       length of the record, these 4 included
4      4       magic: DAA320A7; DAA320AB: the topic's length has 2 bytes; CBD43194: a blank, which
               extends over its length
8      4       CRC-32 of the body & 7FFFFFFF; 0 of an empty one
12     4       queue id
16     4       flag
20     8       queue offset
28     8       offset in the CommitLog of this record
36     4       sys_flag: 0xC is 8 for a commit, 12 for a record that is not queued; 0x1 the body is compressed
40     8 + 8   born: time, host
56     8 + 8   stored: time, host
72     4       attempts
76     8       offset of the half that the record ends
84     4 + b   length, body
       1 + t   length, topic
       2 + p   length, properties: name 01 value 02, repeated; the last one is `__CRC32#`: CRC-32 & 7FFFFFFF
               of all bytes before it, ten digits, least significant first

topic                       meaning
RMQ_SYS_TRANS_HALF_TOPIC    a half of REAL_TOPIC
TW_SYS_OUTCOME              the half ended without a message: TW_OUTCOME
rmq_sys_wheel_timer         a timer of REAL_TOPIC; TW_REPLACES ends another; a commit also ends a half
TW_SYS_VERB                 the timer at TW_TIMER_OFFSET was cancelled, or could not be read (TW_VERB)
TW_SYS_ACK                  ranges of queue offsets completed by groups (`done`)
%DLQ%..., TW_SYS_...        not verified here
other                       a message; TW_TIMER_OFFSET names the delivered timer, TW_CANCELS one that it
                            cancelled; a commit also ends a half
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from hashlib import sha256

from folding import Piece
from raw_log import number

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
CRC_MASK = 0x7FFFFFFF
CRC_BYTES = 20
COMMIT, NOT_QUEUED = 8, 12
HALF_TOPIC, TIMER_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"
OUTCOME_TOPIC, VERB_TOPIC, ACK_TOPIC = "TW_SYS_OUTCOME", "TW_SYS_VERB", "TW_SYS_ACK"
_NO_MESSAGES = ("TW_SYS_", "RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_", "%DLQ%")
HASH_DIGITS = 16


class What(Enum):
    """Kind of a record from the view of clients."""

    MESSAGE = "message"
    HALF = "half"
    TIMER = "timer"
    OUTCOME = "outcome"
    VERB = "verb"
    ACK = "acknowledgement"
    OTHER = "other"


_BY_TOPIC = {
    HALF_TOPIC: What.HALF,
    TIMER_TOPIC: What.TIMER,
    OUTCOME_TOPIC: What.OUTCOME,
    VERB_TOPIC: What.VERB,
    ACK_TOPIC: What.ACK,
}


class Unreadable(ValueError):
    """Bytes are not a valid record; the text gives the reason."""


@dataclass(frozen=True)
class Record:
    """A record of the CommitLog, and the piece of the shared log that contains it."""

    offset: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    half_offset: int
    body: bytes
    stored_topic: str
    properties: dict[str, str]
    piece: Piece

    @property
    def what(self) -> What:
        """The kind of the record."""
        if (found := _BY_TOPIC.get(self.stored_topic)) is not None:
            return found
        is_other = self.stored_topic.startswith(_NO_MESSAGES) or self.sys_flag & 12 == NOT_QUEUED
        return What.OTHER if is_other else What.MESSAGE

    @property
    def message_id(self) -> str:
        """The message id assigned by the client."""
        return self.properties.get("UNIQ_KEY", "")

    @property
    def topic(self) -> str:
        """The topic named by the client."""
        return self.properties.get("REAL_TOPIC", self.stored_topic)

    @property
    def is_commit(self) -> bool:
        """Whether the record commits a half with its message."""
        return self.sys_flag & 12 == COMMIT

    @property
    def due_ms(self) -> int | None:
        """The due time of a timer's message in ms; None without a timer."""
        return _digits(self.properties.get("TIMER_OUT_MS"))

    @property
    def verb(self) -> str:
        """The verb of an operator or a client on a timer; empty for none."""
        return self.properties.get("TW_VERB", "")

    @property
    def timer_offset(self) -> int | None:
        """The offset of the timer that a delivery or a verb ends; None for other records."""
        return _digits(self.properties.get("TW_TIMER_OFFSET"))

    @cached_property
    def hashes(self) -> set[str]:
        """The hashes of the body: as stored, and decompressed if it is compressed."""
        found = {hash_of(self.body)}
        if self.sys_flag & 1 and self.sys_flag & 0x700 in (0, 0x300):
            found.add(hash_of(zlib.decompress(self.body, 47)))
        return found


def hash_of(body: bytes) -> str:
    """Return the hash of a body in histories: the first 16 hex digits of its SHA-256."""
    return sha256(body).hexdigest()[:HASH_DIGITS]


def records_of(pieces: Iterable[Piece], wrong: list[str]) -> Iterator[Record]:
    """Yield the records in pieces of the history; append the errors of unreadable ones to `wrong`."""
    for piece in pieces:
        at = 0
        try:
            while at < len(piece.body):
                length = number(piece.body, at, 4)
                if number(piece.body, at + 4, 4) != BLANK:
                    yield parse(piece, at, length)
                _require(length >= 8 and at + length <= len(piece.body) + piece.zeros, "its length is wrong")
                at += length
        except (Unreadable, ValueError) as error:
            wrong.append(f"CommitLog {piece.start + at} (record {piece.offset} of the shared log): {error}")


def parse(piece: Piece, at: int, length: int) -> Record:
    """Return the record at a position of a piece; raise `Unreadable`."""
    content = piece.body[at : at + length]
    _require(len(content) == length >= 91, "its length is wrong")
    magic, sys_flag = number(content, 4, 4), number(content, 36, 4)
    _require(magic in (V1, V2), "its magic is wrong")
    _require(number(content, 28, 8) == piece.start + at, "it names another place than its own")
    stored_at = 48 + (20 if sys_flag & 0x10 else 8)
    attempts_at = stored_at + 8 + (20 if sys_flag & 0x20 else 8)
    body, behind = _counted(content, attempts_at + 12, 4)
    topic, behind = _counted(content, behind, 2 if magic == V2 else 1)
    properties, behind = _counted(content, behind, 2)
    _require(behind == length, "its lengths do not add up")
    _require(zlib.crc32(body) & CRC_MASK == number(content, 8, 4), "the CRC of its body does not match")
    _require(content[-CRC_BYTES:] == _crc_property(content[:-CRC_BYTES]), "its CRC does not match")
    return Record(
        offset=piece.start + at,
        queue_id=number(content, 12, 4, signed=True),
        queue_offset=number(content, 20, 8),
        sys_flag=sys_flag,
        store_ms=number(content, stored_at, 8),
        half_offset=number(content, attempts_at + 4, 8),
        body=body,
        stored_topic=topic.decode(),
        properties=_pairs(properties),
        piece=piece,
    )


def done(body: bytes) -> Iterator[tuple[str, str, int, range]]:
    """Yield (group, topic, queue id, queue offsets) of the body of an acknowledgement.

    An entry: group and topic (each 1 byte of length, UTF-8), queue id (2), count (2), then first offset (8)
    and number (4) of each range. An entry of six zeros marks the next one as passed over by a filter, which
    is not yielded.
    """
    at, is_passed = 0, False
    while at < len(body):
        group, at = _counted(body, at, 1)
        topic, at = _counted(body, at, 1)
        queue_id, count = number(body, at, 2), number(body, at + 2, 2)
        at += 4
        for _ in range(count):
            first, many = number(body, at, 8), number(body, at + 8, 4)
            at += 12
            if not is_passed:
                yield group.decode(), topic.decode(), queue_id, range(first, first + many)
        is_passed = not (group or topic or count)


def _counted(content: bytes, at: int, width: int) -> tuple[bytes, int]:
    """Return a length-prefixed byte string, and the position after it."""
    begins = at + width
    ends = begins + number(content, at, width)
    _require(begins <= ends <= len(content), "its lengths do not add up")
    return content[begins:ends], ends


def _pairs(properties: bytes) -> dict[str, str]:
    split = (pair.partition("\x01") for pair in properties.decode(errors="replace").split("\x02"))
    return {name: value for name, _, value in split if value}


def _crc_property(before: bytes) -> bytes:
    digits = f"{zlib.crc32(before) & CRC_MASK:010d}"[::-1]
    return b"__CRC32#\x01" + digits.encode() + b"\x02"


def _digits(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise Unreadable(why)
