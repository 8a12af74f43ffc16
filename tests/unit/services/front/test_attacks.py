"""Every attack of `tests/attacks/http2.py` on one connection, without a socket: what it holds, and is told.

Beside them what takes time: what is begun and left, what is not read.
"""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections import Counter, deque
from itertools import count, islice

import pytest

from commitlog import limits
from services.front.grpc_calls import (
    CallCancelled,
    CallReceived,
    CallStarted,
    Event,
    GrpcCalls,
    HalfClosed,
    MessageReceived,
    Method,
    RequestMemory,
)
from services.front.grpc_wire import Status, frame_message
from services.front.header_fields import Field
from services.front.http2 import ConnectionEnded, ConnectionLimits
from services.front.http2_frames import Code
from tests.attacks.http2 import (
    ANSWERED,
    ATTACKS,
    CALL,
    HUNG_UP_ON_WITH,
    OF_TABLES,
    PATH,
    STREAM_CALL,
    STREAM_PATH,
    Frames,
    literal,
)
from tests.http2_client import (
    ACK,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Frame,
    block,
    code_of,
    data,
    fields_of,
    frame,
    frames,
    rst_stream,
    settings,
    window_update,
)

METHODS = {PATH: Method("unary", takes_stream=False), STREAM_PATH: Method("stream", takes_stream=True)}
READ_BYTES, ATTACK_BYTES_MAX = 64 * 1024, 1_000_000
HELD_BYTES_MAX = 6 * 1024 * 1024
"""What an attack of 1 MB may make one connection hold, answers of 20 KB to all its calls included."""
ANSWER = bytes(20_000)
NO_TABLE = b"\0\x01\0\0\0\0"
OPEN = PREFACE + settings(window=2**31 - 1) + frame(SETTINGS, ACK, 0) + window_update(0, 2**30)
"""A greeting of a client that lets everything come."""
CALM = "ENHANCE_YOUR_CALM"


class Peer:
    """A connection as the port serves it: a turn's work in each turn, what is said is written at once."""

    def __init__(
        self, greeting: bytes = OPEN, answer: bytes = ANSWER, *, acknowledges_no_table: bool = False
    ) -> None:
        self.answer, self.acknowledges_no_table = answer, acknowledges_no_table
        self.now, self.parts, self.kept = 1_000.0, RequestMemory(), dict[bytes, Field]()
        self.server = GrpcCalls(METHODS.get, ConnectionLimits(), self.kept, self.parts, self.now)
        self.statuses: Counter[str] = Counter()
        self.goaway: Frame | None = None
        self.resets: Counter[int] = Counter()
        self.events: list[Event] = []
        self.turns = 0
        self.say(greeting)

    def say(self, said: bytes) -> list[Frame]:
        """Say something; every call is answered, a message of a stream heard."""
        waiting = self.server.receive(said, self.now)
        told = []
        while True:
            self.turns += 1
            assert len(waiting) <= limits.WORK_PER_TURN_MAX + limits.CONNECTION_STREAMS_MAX + 1
            self.take(waiting)
            told += frames(self.server.http2.take_output())
            self.take(self.server.events())
            if not self.server.has_unread:
                break
            waiting = self.server.receive(b"", self.now)
        for one in told:
            self.note(one)
        return told

    def take(self, events: list[Event]) -> None:
        waiting = deque(events)
        while waiting:
            event = waiting.popleft()
            self.events.append(event)
            if isinstance(event, CallReceived):
                self.server.reply(event.stream_id, self.answer)
            elif isinstance(event, MessageReceived):
                waiting += self.server.finish_message(event.stream_id)

    def note(self, one: Frame) -> None:
        if one.kind == GOAWAY:
            self.goaway = one
        elif one.kind == RST_STREAM:
            self.resets[code_of(one)] += 1
        elif one.kind == HEADERS and one.flags & END_STREAM:
            self.statuses[fields_of(one.payload)["grpc-status"]] += 1
        elif one.kind == SETTINGS and one.payload == NO_TABLE and self.acknowledges_no_table:
            self.acknowledges_no_table = False
            self.say(frame(SETTINGS, ACK, 0))

    def look(self, seconds: float) -> None:
        self.now += seconds
        assert self.server.check_limits(self.now, 1e9, 1e9), "it answers pings"
        self.take(self.server.events())
        for one in frames(self.server.http2.take_output()):
            self.note(one)

    @property
    def told(self) -> str:
        return "" if self.goaway is None else Code(code_of(self.goaway)).name

    @property
    def is_closed(self) -> bool:
        return self.server.http2.is_closed


def pieces(attack: Frames, bytes_max: int = ATTACK_BYTES_MAX) -> Frames:
    """An attack as it is read from a socket."""
    waiting, said_bytes = b"", 0
    for one in attack:
        waiting += one
        while len(waiting) >= READ_BYTES:
            yield waiting[:READ_BYTES]
            waiting, said_bytes = waiting[READ_BYTES:], said_bytes + READ_BYTES
        if said_bytes >= bytes_max:
            return
    yield waiting


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_holds_little_and_is_told_why_it_must_go(name: str) -> None:
    tracemalloc.start()
    try:
        peer = Peer()
        before, held_bytes = tracemalloc.get_traced_memory()[0], 0
        for piece in pieces(ATTACKS[name](), 100_000 if name == "small_messages" else ATTACK_BYTES_MAX):
            peer.say(piece)
            peer.events.clear()
            held_bytes = max(held_bytes, tracemalloc.get_traced_memory()[0] - before)
            if peer.is_closed:
                break
    finally:
        tracemalloc.stop()
    assert held_bytes < HELD_BYTES_MAX
    assert peer.told == HUNG_UP_ON_WITH.get(name, "")
    assert peer.server.http2.stream_count <= limits.CONNECTION_STREAMS_MAX
    if name in ANSWERED:
        assert peer.server.http2.stream_count <= 1
        assert peer.statuses or name == "small_messages"
    if peer.is_closed:
        peer.server.release_requests()
        assert peer.parts.held_bytes == 0


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_table_that_was_agreed_not_to_be_ends_its_connection(name: str) -> None:
    peer = Peer(acknowledges_no_table=True)
    for said in islice(ATTACKS[name](), 10):
        peer.say(said)
    assert peer.told == "COMPRESSION_ERROR"


def test_entries_of_a_table_that_was_agreed_not_to_be_are_dropped_and_their_calls_are_served() -> None:
    peer = Peer(acknowledges_no_table=True)
    for said in islice(ATTACKS["table_churn"](), 10):
        peer.say(said)
    assert peer.told == ""
    assert peer.statuses == {"0": 10}
    assert not peer.server.http2.uses_table


def test_a_turn_takes_so_many_frames_apart_and_the_rest_in_later_ones() -> None:
    peer, pieces_of = Peer(), 20 * limits.WORK_PER_TURN_MAX
    message = frame_message(bytes(pieces_of * 20 - 5))
    said = b"".join(data(1, message[at : at + 20]) for at in range(0, len(message), 20))
    before = peer.turns
    peer.say(frame(HEADERS, END_HEADERS, 1, CALL) + said + data(1, b"", ends=True))
    assert peer.turns - before >= 20
    assert peer.statuses == {"0": 1}


def test_blocks_that_take_long_to_read_take_most_of_a_turn() -> None:
    """Huffman's code in Python: 16 KB take some 5 ms."""
    peer = Peer()
    long = block(("x-long", "a" * 15_000), fields=(*FIELDS_OF_CALL,), huffman=True)
    said = b"".join(
        frame(HEADERS, END_HEADERS | END_STREAM, stream_id, long) for stream_id in range(1, 41, 2)
    )
    before = peer.turns
    peer.say(said)
    assert peer.turns - before >= 10


FIELDS_OF_CALL = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    ("content-type", "application/grpc"),
)


# What takes time.


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (PREFACE[:10], "greeting"),
        (PREFACE, "greeting"),
        (PREFACE + settings() + frame(HEADERS, 0, 1, CALL), "header block"),
        (PREFACE + settings() + data(1, bytes(100))[:50], "frame"),
        (PREFACE + settings() + frame(HEADERS, END_HEADERS, 1, CALL)[:5], "frame"),
    ],
)
def test_who_stops_in_the_middle_is_hung_up_on_though_a_byte_comes_now_and_then(
    said: bytes, what: str
) -> None:
    peer = Peer(said)
    for _ in range(limits.FRAME_MS_MAX // 1000 - 1):
        peer.look(1.0)
        assert not peer.is_closed
        if what == "frame":
            peer.say(b"\0")
    peer.look(1.5)
    assert peer.told == CALM
    assert peer.goaway is not None
    assert what in peer.goaway.payload.decode(errors="replace").lower()


def test_who_goes_on_frame_by_frame_is_not() -> None:
    peer = Peer()
    peer.say(frame(HEADERS, END_HEADERS, 1, STREAM_CALL))
    piece = data(1, frame_message(bytes(100)))
    for _ in range(100):
        peer.say(piece[:50])
        peer.look(5.0)
        peer.say(piece[50:])
        peer.look(5.0)
    assert not peer.is_closed


def test_a_request_that_does_not_come_is_refused_and_nothing_of_it_held() -> None:
    peer = Peer()
    for stream_id in range(1, 2 * limits.CONNECTION_STREAMS_MAX, 2):
        peer.say(frame(HEADERS, END_HEADERS, stream_id, CALL + literal("x-a", "b" * 500)))
    assert peer.parts.held_bytes > limits.CONNECTION_STREAMS_MAX * 500
    peer.look(limits.REQUEST_MS_MAX / 1000 - 1)
    assert not peer.statuses
    peer.look(2.0)
    assert peer.statuses == {str(int(Status.DEADLINE_EXCEEDED)): limits.CONNECTION_STREAMS_MAX}
    assert peer.resets == {Code.NO_ERROR: limits.CONNECTION_STREAMS_MAX}
    assert peer.parts.held_bytes == peer.server.http2.stream_count == 0
    assert not peer.is_closed


def test_what_is_no_grpc_and_does_not_come_is_answered_all_the_same() -> None:
    peer = Peer()
    fields = tuple((name, "GET" if name == ":method" else value) for name, value in FIELDS_OF_CALL)
    peer.say(frame(HEADERS, END_HEADERS, 1, block(fields=fields)))
    peer.look(limits.REQUEST_MS_MAX / 1000 + 1)
    assert peer.server.http2.stream_count == 0


@pytest.mark.parametrize("bytes_per_second", [1, 2 * limits.REQUEST_BYTES_PER_SECOND_MIN])
@pytest.mark.parametrize("call", [CALL, STREAM_CALL], ids=["unary", "stream"])
def test_a_body_comes_at_some_speed_or_is_refused(call: bytes, bytes_per_second: int) -> None:
    peer = Peer()
    peer.say(frame(HEADERS, END_HEADERS, 1, call) + data(1, struct.pack(">BI", 0, 1 << 22)))
    for _ in range(200):
        peer.say(data(1, bytes(bytes_per_second % 16_384 or 16_384)))
        peer.look(1.0)
    assert not peer.is_closed
    is_slow = bytes_per_second == 1
    assert peer.statuses == ({str(int(Status.DEADLINE_EXCEEDED)): 1} if is_slow else {})
    assert (CallCancelled(1) in peer.events) == (is_slow and call is STREAM_CALL)
    assert (peer.parts.held_bytes == 0) == is_slow


def test_a_stream_may_be_silent_between_its_messages() -> None:
    peer = Peer()
    peer.say(frame(HEADERS, END_HEADERS, 1, STREAM_CALL))
    for _ in range(20):
        peer.look(limits.REQUEST_MS_MAX / 500)
        peer.say(data(1, frame_message(b"a")))
    assert [type(one) for one in peer.events] == [CallStarted, *[MessageReceived] * 20]


@pytest.mark.parametrize("is_below_zero", [False, True])
def test_who_reads_nothing_of_what_waits_is_hung_up_on(is_below_zero: bool) -> None:
    peer = Peer(OPEN + settings(window=100 if is_below_zero else 0))
    for stream_id in range(1, 2 * limits.CONNECTION_STREAMS_MAX, 2):
        peer.say(
            frame(HEADERS, END_HEADERS, stream_id, CALL) + data(stream_id, frame_message(b""), ends=True)
        )
    if is_below_zero:
        peer.say(settings(window=0))
    most = limits.CONNECTION_STREAMS_MAX * (len(ANSWER) + 5)
    assert most - 100 * limits.CONNECTION_STREAMS_MAX <= peer.server.http2.waiting_bytes <= most
    peer.look(1.0)
    peer.look(limits.UNREAD_MS_MAX / 1000 - 2)
    assert not peer.is_closed
    peer.look(3.0)
    assert peer.told == CALM
    assert peer.server.http2.waiting_bytes == 0


def test_who_reads_slowly_is_not() -> None:
    peer = Peer(OPEN + settings(window=0))
    peer.say(frame(HEADERS, END_HEADERS, 1, CALL) + data(1, frame_message(b""), ends=True))
    for _ in range(10):
        peer.look(limits.UNREAD_MS_MAX / 2000)
        peer.say(window_update(1, 100))
        peer.look(limits.UNREAD_MS_MAX / 2000)
    assert not peer.is_closed


def test_who_takes_nothing_from_its_socket_is_hung_up_on() -> None:
    peer = Peer()
    peer.server.http2.is_full = True
    peer.look(1.0)
    peer.look(limits.UNREAD_MS_MAX / 1000 + 1)
    assert peer.told == CALM


# What must not grow however long it goes on.


def test_windows_that_open_and_close_leave_no_trace() -> None:
    """100 a second are allowed for ever: nothing may be left of each."""
    peer = Peer(PREFACE + settings())
    for stream_id in range(1, 20, 2):  # until the window of the connection is used up
        peer.say(
            frame(HEADERS, END_HEADERS, stream_id, CALL) + data(stream_id, frame_message(b""), ends=True)
        )
    http2 = peer.server.http2
    assert http2.waiting_bytes
    for number in range(2_000):
        peer.now += 0.1
        peer.say(settings(window=0) if number % 2 else settings(window=60_000))
    assert not peer.is_closed
    assert len(http2._ready) <= http2.stream_count


def test_streams_that_are_reset_while_they_wait_leave_no_trace() -> None:
    peer = Peer()
    http2 = peer.server.http2
    http2.is_full = True
    for stream_id in range(1, 4_001, 2):
        peer.now += 0.1
        peer.say(frame(HEADERS, END_HEADERS, stream_id, CALL) + data(stream_id, b"", ends=True))
        assert len(http2._unsent_ends) == 1
        peer.say(rst_stream(stream_id))
    assert not peer.is_closed
    assert http2._unsent_ends == http2._streams == {}


def test_a_client_that_hangs_up_at_any_byte_leaves_nothing() -> None:
    said = (
        frame(HEADERS, END_HEADERS, 1, STREAM_CALL)
        + data(1, frame_message(b"one") + frame_message(b"two")[:4])
        + frame(HEADERS, 0, 3, CALL[:20])
        + frame(9, END_HEADERS, 3, CALL[20:])
        + data(3, frame_message(bytes(60))[:50])
        + data(1, frame_message(b"two")[4:], ends=True)
    )
    for cut in range(len(said)):
        peer = Peer()
        peer.say(said[:cut])
        peer.server.release_requests()
        assert peer.parts.held_bytes == 0, cut


def test_messages_of_a_stream_wait_in_bytes_until_the_one_before_was_heard() -> None:
    parts = RequestMemory()
    server = GrpcCalls(METHODS.get, ConnectionLimits(), {}, parts, 0.0)
    found = server.receive(OPEN + frame(HEADERS, END_HEADERS, 1, STREAM_CALL), 0.0)
    found += server.receive(data(1, 3_000 * frame_message(b"")) + data(1, b"", ends=True), 0.0)
    assert [type(one) for one in found] == [CallStarted, MessageReceived]
    assert parts.held_bytes == 2_999 * 5
    for left in reversed(range(2_999)):
        assert [type(one) for one in server.finish_message(1)] == [MessageReceived]
        assert parts.held_bytes == left * 5
    assert server.finish_message(1) == [HalfClosed(1)]


def test_a_message_that_waits_to_be_heard_is_counted() -> None:
    parts = RequestMemory()
    server = GrpcCalls(METHODS.get, ConnectionLimits(), {}, parts, 0.0)
    server.receive(OPEN + frame(HEADERS, END_HEADERS, 1, STREAM_CALL), 0.0)
    for at in range(0, 100_000, 10_000):
        server.receive(data(1, frame_message(bytes(100_000 - 5))[at : at + 10_000]), 0.0)
    assert parts.held_bytes == 100_000 - 5
    assert server.finish_message(1) == []
    assert parts.held_bytes == 0


def test_an_honest_compressed_message_costs_nothing_and_one_of_nothing_does() -> None:
    text = b"".join(b"%d orders of %d pieces. " % (number, number * 7919 % 1_000) for number in range(20_000))
    for plain, is_honest in ((text, True), (bytes(400_000), False)):
        peer = Peer()
        packed = gzip.compress(plain)
        body = b"\1" + len(packed).to_bytes(4, "big") + packed
        for stream_id in count(1, 2):
            peer.say(
                frame(HEADERS, END_HEADERS, stream_id, CALL + literal("grpc-encoding", "gzip"))
                + b"".join(data(stream_id, body[at : at + 16_000]) for at in range(0, len(body), 16_000))
                + data(stream_id, b"", ends=True)
            )
            if peer.is_closed or stream_id > 100:
                break
        assert peer.is_closed != is_honest
        assert peer.statuses["0"] > (40 if is_honest else 2)


def test_in_a_turn_little_is_unpacked() -> None:
    packed = gzip.compress(bytes(400_000))
    body = b"\1" + len(packed).to_bytes(4, "big") + packed
    said = b"".join(
        frame(HEADERS, END_HEADERS, stream_id, CALL + literal("grpc-encoding", "gzip"))
        + data(stream_id, body, ends=True)
        for stream_id in range(1, 9, 2)
    )
    server = GrpcCalls(METHODS.get, ConnectionLimits(), {}, RequestMemory(), 0.0)
    server.receive(OPEN, 0.0)
    turns = [server.receive(said, 0.0)]
    while server.has_unread:
        turns.append(server.receive(b"", 0.0))
    assert [len(one) for one in turns] == [2, 2]
    assert not server.http2.is_closed


def test_fields_may_be_so_many() -> None:
    peer = Peer()
    most = limits.HEADERS_COUNT_MAX - len(frame_fields())
    for stream_id, fields in ((1, most), (3, most + 1)):
        more = b"".join(literal(f"x-{at}", "") for at in range(fields))
        peer.say(
            frame(HEADERS, END_HEADERS, stream_id, CALL + more)
            + data(stream_id, frame_message(b""), ends=True)
        )
    assert peer.statuses == {"0": 1, str(int(Status.RESOURCE_EXHAUSTED)): 1}


def frame_fields() -> dict[str, str]:
    return fields_of(CALL)


def test_who_has_brought_little_is_forgiven_in_time() -> None:
    peer = Peer()
    for _ in range(limits.IDLE_FRAMES_MAX // 2):
        peer.say(frame(0xFA, 0, 0))
    assert peer.server.http2.is_throttled
    peer.now += limits.IDLE_FRAMES_MAX / limits.IDLE_FRAMES_PER_SECOND / 2
    peer.say(frame(HEADERS, END_HEADERS, 1, CALL))
    assert not peer.server.http2.is_throttled


def test_who_pings_now_and_then_is_never_one_who_brings_little() -> None:
    peer = Peer()
    for _ in range(limits.IDLE_FRAMES_MAX):
        peer.now += limits.PING_INTERVAL_MS_MIN / 1000
        peer.say(frame(PING, 0, 0, bytes(8)))
        assert not peer.server.http2.is_throttled


def test_the_end_is_told_once() -> None:
    peer = Peer()
    for piece in pieces(ATTACKS["priorities"]()):
        peer.say(piece)
    assert [type(one) for one in peer.events].count(ConnectionEnded) == 1
