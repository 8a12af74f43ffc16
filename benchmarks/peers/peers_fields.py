"""Header fields of the load: a minimal set, or those recorded from RocketMQ's Java client.

An HTTP/2 client may use the dynamic table that its server offers (RFC 7541). Tidewheel's server sets its size
to 0 with the first call, so from then on each block contains all fields. RocketMQ's offers 4,096 bytes, so
constant fields are entered into it by the first blocks of a connection, and take one byte each from then on.
Fields that change with each call are literals for both: a request id and a timeout, and a date that changes
every second, as in the recordings. (The Java client enters these into the table as well, which therefore
overflows every thirty calls; this load does not.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from hpack import Decoder

RECORDED: Final = Path(__file__).parents[2] / "tests" / "vectors" / "header_blocks.json"
SERVICE: Final = b"/apache.rocketmq.v2.MessagingService/"
CHOICES: Final = ("plain", "java")
STATIC: Final = {(b":method", b"POST"): 3, (b":scheme", b"http"): 6, (b":scheme", b"https"): 7}
STATIC_NAMES: Final = {b":authority": 1, b":path": 4, b"content-type": 31, b"user-agent": 58}
STATIC_COUNT, ENTRY_BYTES, TABLE_BYTES = 61, 32, 4_096
NO_TABLE: Final = b"\x20"
INDEXED, INSERTED, WRITTEN = 0x80, 0x40, 0x00
Field = tuple[bytes, bytes]
Changing = Callable[[bytes], bytes]
"""Returns the value of a field for the next call of an RPC."""

PLAIN: Final[Sequence[Field]] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"127.0.0.1"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"x-mq-language", b"PYTHON"),
    (b"x-mq-protocol", b"v2"),
    (b"x-mq-client-version", b"5.1.2"),
    (b"grpc-timeout", b"1H"),
)


def stable_fields(kind: str, client_id: str, *, is_tls: bool) -> list[Field]:
    """Return the fields that are the same in each call of a client, except its path."""
    own = {b"x-mq-client-id": client_id.encode(), b":scheme": b"https" if is_tls else b"http"}
    fields = dict(PLAIN if kind == "plain" else recorded()) | own
    return [(name, value) for name, value in fields.items() if name not in changing_fields(kind)]


def recorded() -> list[Field]:
    """Return the fields of the Java client's first recorded call, without its path."""
    block = json.loads(RECORDED.read_text())["java"]["0"][0][0]
    fields = Decoder().decode(bytes.fromhex(block), raw=True)
    return [(bytes(name), bytes(value)) for name, value in fields if name != b":path"]


def changing_fields(kind: str) -> dict[bytes, Changing]:
    """Return the functions for the values of the fields that change with each call."""
    if kind == "plain":
        return {}
    numbers = count(time.time_ns() & 0xFFFFFFFF)
    return {
        b"x-mq-date-time": Date(),
        b"x-mq-request-id": lambda _: request_id(next(numbers)),
        b"grpc-timeout": lambda rpc: timeout(rpc, next(numbers)),
    }


def request_id(number: int) -> bytes:
    """Return a request id in the format of a UUID."""
    return b"%08x-9595-4550-ae49-%012x" % (number * 2_654_435_761 & 0xFFFFFFFF, number)


def timeout(rpc: bytes, number: int) -> bytes:
    """Return the grpc-timeout of a call as in the Java client: 3 s, or 8 s for a long poll."""
    if rpc == b"Telemetry":
        return b"31535999M"
    return b"%du" % ((7_990_000 if rpc == b"ReceiveMessage" else 2_990_000) + number % 9_999)


class Date:
    """The current date, formatted once per second."""

    def __init__(self) -> None:
        self._second, self._text = 0, b""

    def __call__(self, _: bytes) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second)).encode()
        return self._text


class FieldWriter:
    """A writer of the header blocks of one connection, which must be sent in the order of writing."""

    def __init__(
        self, stable: Sequence[Field], changing: Mapping[bytes, Changing], *, uses_table: bool
    ) -> None:
        self._pseudo = [field for field in stable if field[0].startswith(b":")]
        self._others = [field for field in stable if not field[0].startswith(b":")]
        self._changing = changing
        self._room = TABLE_BYTES if uses_table else 0
        self._begins = b"" if uses_table else NO_TABLE
        self._numbers: dict[Field | bytes, int] = {}
        self._inserted = 0
        self._known: dict[bytes, tuple[bytes, list[tuple[bytes, Changing]]]] = {}

    def block(self, rpc: bytes) -> bytes:
        """Return the block of a call of this RPC."""
        known = self._known.get(rpc)
        if known is None:
            return self._new(rpc)
        head, changing = known
        if not changing:
            return head
        parts = [head]
        for begins, value_of in changing:
            value = value_of(rpc)
            parts += (begins, bytes((len(value),)), value)
        return b"".join(parts)

    def _new(self, rpc: bytes) -> bytes:
        """Write a block that may add fields to the table; it is cached once it adds none."""
        before, begins = self._inserted, self._begins
        self._begins = b""
        stable = [*self._pseudo, (b":path", SERVICE + rpc), *self._others]
        head = b"".join(map(self._field, stable))
        tail = b"".join(self._name(name) + string(value_of(rpc)) for name, value_of in self._changing.items())
        if self._inserted != before:
            self._known.clear()
        else:
            self._known[rpc] = (
                head,
                [(self._name(name), value_of) for name, value_of in self._changing.items()],
            )
        return begins + head + tail

    def _field(self, field: Field) -> bytes:
        name, value = field
        place = STATIC.get(field) or self._place(field)
        if place:
            return integer(place, INDEXED, 0x7F)
        of_name = STATIC_NAMES.get(name, 0)
        how, limit = (INSERTED, 0x3F) if self._insert(field) else (WRITTEN, 0x0F)
        return integer(of_name, how, limit) + (b"" if of_name else string(name)) + string(value)

    def _name(self, name: bytes) -> bytes:
        """Return the encoded start of a field with a literal value; its name is added to the table once."""
        if place := self._place(name):
            return integer(place, WRITTEN, 0x0F)
        how = INSERTED if self._insert((name, bytes(64))) else WRITTEN
        return bytes((how,)) + string(name)

    def _place(self, entry: Field | bytes) -> int:
        number = self._numbers.get(entry)
        return 0 if number is None else STATIC_COUNT + self._inserted - number

    def _insert(self, field: Field) -> bool:
        size = len(field[0]) + len(field[1]) + ENTRY_BYTES
        if size > self._room:
            return False
        self._room -= size
        self._numbers[field] = self._inserted
        self._numbers.setdefault(field[0], self._inserted)
        self._inserted += 1
        return True


def integer(value: int, how: int, limit: int) -> bytes:
    """Return an HPACK integer below `limit` + 128, with the bits `how` of its representation."""
    return bytes((how | value,)) if value < limit else bytes((how | limit, value - limit))


def string(text: bytes) -> bytes:
    """Return an HPACK string of less than 127 bytes, without Huffman coding."""
    return bytes((len(text),)) + text
