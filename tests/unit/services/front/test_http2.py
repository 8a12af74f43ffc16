"""One connection of HTTP/2: what a client says, byte for byte, and what the server makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from commitlog.limits import HEADERS_BYTES_MAX
from services.front.http2 import (
    ConnectionEnded,
    ConnectionLimits,
    DataReceived,
    Event,
    HeadersTooLong,
    Http2Connection,
    RequestReceived,
    StreamDrained,
    StreamReset,
)
from services.front.http2_frames import Code
from tests import http2_client
from tests.http2_client import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GREETING,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PUSH_PROMISE,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    block,
    code_of,
    data,
    fields_of,
    frame,
    frames,
    request,
    rst_stream,
    settings,
    window_update,
)

HEAD, END = b"\x88", b"\x00\x0bgrpc-status\x010"
BOUNDS = ConnectionLimits(
    streams=4, stream_window_bytes=100_000, connection_window_bytes=200_000, idle_frames=50
)


class Talk:
    """A connection, and what was said on it."""

    def __init__(self, bounds: ConnectionLimits = BOUNDS, greeting: bytes = GREETING) -> None:
        self.now = 1_000.0
        self.server = Http2Connection(bounds, {}, self.now)
        self.events: list[Event] = []
        self.greeted = self.say(greeting) if greeting else []

    def say(self, said: bytes) -> list[Frame]:
        self.events += self.server.receive(said, self.now)
        return self.told()

    def told(self) -> list[Frame]:
        return frames(self.server.take_output())

    def took(self) -> list[Event]:
        self.events += self.server.events()
        events, self.events = self.events, []
        return events


def test_the_server_says_its_bounds_first_and_acknowledges_the_clients() -> None:
    talk = Talk(greeting=PREFACE + settings(window=10))
    told = talk.greeted
    assert [one.kind for one in told] == [SETTINGS, WINDOW_UPDATE, SETTINGS]
    pairs = {
        told[0].payload[at + 1]: int.from_bytes(told[0].payload[at + 2 : at + 6], "big")
        for at in range(0, 18, 6)
    }
    assert pairs == {3: 4, 4: 100_000, 6: HEADERS_BYTES_MAX}
    assert int.from_bytes(told[1].payload, "big") == 200_000 - 65_535
    assert told[2] == Frame(SETTINGS, ACK, 0, b"")


def test_a_window_that_is_as_it_comes_is_not_made_to_grow_by_nothing() -> None:
    talk = Talk(BOUNDS._replace(connection_window_bytes=65_535))
    assert [one.kind for one in talk.greeted] == [SETTINGS, SETTINGS]


def test_a_request_and_its_answer() -> None:
    talk = Talk()
    assert talk.say(request(1) + data(1, b"asked", ends=True)) == []
    (asked,) = talk.took()
    assert isinstance(asked, RequestReceived)
    assert (asked.stream_id, asked.body, asked.is_whole) == (1, b"asked", True)
    assert asked.head.fields == dict(REQUEST)
    talk.server.send_response(1, HEAD, b"told", END)
    assert talk.told() == [
        Frame(HEADERS, END_HEADERS, 1, HEAD),
        Frame(DATA, 0, 1, b"told"),
        Frame(HEADERS, END_HEADERS | END_STREAM, 1, END),
    ]
    assert talk.server.stream_count == 0


SAID = (
    request(1)
    + data(1, b"asked", ends=True)
    + frame(HEADERS, 0, 3, block()[:20])
    + frame(CONTINUATION, 0, 3, block()[20:40])
    + frame(CONTINUATION, END_HEADERS, 3, block()[40:])
    + data(3, b"one")
    + frame(PING, 0, 0, b"12345678")
    + frame(DATA, PADDED, 3, b"\x04two" + bytes(4))
    + data(3, b"", ends=True)
    + request(5, ends=True)
    + frame(0xFA, 0, 0, b"unknown")
    + rst_stream(5)
)


def heard(events: list[Event]) -> list[Any]:
    """What was asked, whatever frames it came in."""
    bodies: dict[int, bytes] = {}
    found: list[Any] = []
    for one in events:
        if isinstance(one, RequestReceived):
            found.append(("asks", one.stream_id))
            bodies[one.stream_id] = one.body
            if one.is_whole:
                found.append(("ends", one.stream_id, one.body))
        elif isinstance(one, DataReceived):
            bodies[one.stream_id] += one.data
            if one.is_end:
                found.append(("ends", one.stream_id, bodies[one.stream_id]))
        else:
            found.append(one)
    return found


def test_bytes_may_come_in_any_pieces() -> None:
    whole = Talk()
    expected_frames = whole.say(SAID)
    expected = heard(whole.took())
    assert expected == [
        ("asks", 1), ("ends", 1, b"asked"), ("asks", 3), ("ends", 3, b"onetwo"),
        ("asks", 5), ("ends", 5, b""), StreamReset(5, 8),
    ]  # fmt: skip
    for cut in range(1, len(SAID)):
        talk = Talk()
        said = talk.say(SAID[:cut]) + talk.say(SAID[cut:])
        assert heard(talk.took()) == expected
        assert said == expected_frames
    bytewise = Talk()
    for at in range(len(SAID)):
        bytewise.say(SAID[at : at + 1])
    assert heard(bytewise.took()) == expected


# Windows.


def test_a_window_grows_when_what_came_was_consumed_and_padding_counts() -> None:
    talk = Talk()
    talk.say(request(1))
    piece = bytes(16_000)
    for _ in range(5):
        assert talk.say(data(1, piece)) == []
    assert talk.say(frame(DATA, PADDED, 1, bytes((200,)) + bytes(200))) == []
    talk.server.acknowledge_data(1, 5 * 16_000)
    told = talk.told()
    assert (told[0].kind, told[0].stream_id, int.from_bytes(told[0].payload, "big")) == (
        WINDOW_UPDATE, 1, 80_201,
    )  # fmt: skip


def test_more_than_a_stream_may_send_ends_the_stream_and_more_than_the_connection_may_ends_it() -> None:
    talk = Talk(BOUNDS._replace(connection_window_bytes=120_000))
    talk.say(request(1) + request(3))
    for _ in range(6):
        talk.say(data(1, bytes(16_384)))
    told = talk.say(data(1, bytes(16_384)))
    assert [(one.kind, code_of(one)) for one in told if one.kind == RST_STREAM] == [
        (RST_STREAM, Code.FLOW_CONTROL_ERROR)
    ]
    assert StreamReset(1, Code.FLOW_CONTROL_ERROR) in talk.took()
    talk.say(data(3, bytes(16_384)))
    assert isinstance(talk.took()[-1], DataReceived)

    other = Talk(BOUNDS._replace(connection_window_bytes=66_000))
    other.say(request(1))
    for _ in range(4):
        other.say(data(1, bytes(16_384)))
    assert code_of(other.say(data(1, bytes(16_384)))[-1]) == Code.FLOW_CONTROL_ERROR
    assert other.server.is_closed


def test_data_on_streams_that_are_over_is_given_back_to_the_connection() -> None:
    talk = Talk(BOUNDS._replace(idle_frames=10_000))
    talk.say(request(1))
    talk.server.reset_stream(1, Code.CANCEL)
    talk.told()
    given_back = 0
    for _ in range(100):
        for one in talk.say(data(1, bytes(16_000))):
            assert (one.kind, one.stream_id) == (WINDOW_UPDATE, 0)
            given_back += int.from_bytes(one.payload, "big")
    assert given_back > 1_400_000
    assert not talk.server.is_closed


def test_an_answer_waits_for_its_windows_and_holds_back_no_other() -> None:
    talk = Talk(greeting=PREFACE + settings(window=5) + frame(SETTINGS, ACK, 0))
    talk.say(request(1, ends=True) + request(3, ends=True))
    talk.server.send_response(1, HEAD, b"0123456789", END)
    assert [(one.kind, one.payload) for one in talk.told()] == [(HEADERS, HEAD), (DATA, b"01234")]
    talk.server.send_response(3, HEAD, b"abc", END)
    assert [one.payload for one in talk.told()] == [HEAD, b"abc", END]
    assert not talk.server.is_drained(1)
    assert [one.payload for one in talk.say(window_update(1, 3))] == [b"567"]
    talk.took()
    assert [one.payload for one in talk.say(window_update(1, 3))] == [b"89", END]
    assert talk.took() == [StreamDrained(1)]
    assert talk.server.is_drained(1)


def test_settings_may_turn_a_window_negative() -> None:
    talk = Talk(greeting=PREFACE + settings(window=10) + frame(SETTINGS, ACK, 0))
    talk.say(request(1, ends=True))
    talk.server.begin_response(1, HEAD)
    talk.server.send_data(1, b"0123456789")
    talk.told()
    talk.say(settings(window=2))
    talk.server.send_data(1, b"more")
    assert talk.told() == []
    assert talk.say(window_update(1, 8)) == []
    assert [one.payload for one in talk.say(window_update(1, 3))] == [b"mor"]


def test_streams_that_wait_for_the_connections_window_take_turns() -> None:
    talk = Talk(greeting=PREFACE + settings(window=1_000_000) + frame(SETTINGS, ACK, 0))
    talk.say(request(1, ends=True) + request(3, ends=True))
    for stream_id in (1, 3):
        talk.server.begin_response(stream_id, HEAD)
        talk.server.send_data(stream_id, bytes(100_000))
    sent = [one.stream_id for one in talk.told() if one.kind == DATA]
    assert set(sent) == {1}
    said = talk.say(window_update(0, 6 * 16_384))
    assert [one.stream_id for one in said][:4] == [1, 3, 1, 3]


def test_nothing_is_said_while_the_transport_takes_nothing() -> None:
    talk = Talk()
    talk.say(request(1, ends=True))
    talk.server.is_full = True
    talk.server.send_response(1, HEAD, b"told", END)
    assert [one.payload for one in talk.told()] == [HEAD]
    assert talk.server.waiting_bytes == 4
    assert talk.server.resume() == [StreamDrained(1)]
    assert [one.payload for one in talk.told()] == [b"told", END]
    assert talk.server.waiting_bytes == 0


def test_an_end_is_not_said_either_while_the_transport_takes_nothing() -> None:
    talk = Talk()
    talk.server.is_full = True
    for stream_id in (1, 3):
        talk.say(request(stream_id, ends=True))
        talk.server.end_response(stream_id, HEAD + END)
        assert talk.told() == []
    assert talk.server.stream_count == 2
    talk.say(rst_stream(3))
    talk.server.resume()
    assert [(one.stream_id, one.payload) for one in talk.told()] == [(1, HEAD + END)]
    assert talk.server.stream_count == 0


@given(st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=40), st.integers(1, 60))
def test_whatever_the_windows_do_all_comes_in_order(steps: list[tuple[int, bool]], first: int) -> None:
    talk = Talk(greeting=PREFACE + settings(window=first) + frame(SETTINGS, ACK, 0))
    talk.say(request(1, ends=True))
    talk.server.begin_response(1, HEAD)
    said, told, number = b"", b"", 0
    for size, is_sent in steps:
        if is_sent:
            piece = bytes((number + at) & 0xFF for at in range(size))
            number += size
            said += piece
            talk.server.send_data(1, piece)
            found = talk.told()
        else:
            found = talk.say(window_update(1, size))
        told += b"".join(one.payload for one in found if one.kind == DATA)
        assert said.startswith(told)
        assert talk.server.waiting_bytes == len(said) - len(told)
    talk.server.end_response(1, END)
    found = talk.told() + talk.say(window_update(1, 1_000_000))
    told += b"".join(one.payload for one in found if one.kind == DATA)
    assert told == said
    assert found[-1] == Frame(HEADERS, END_HEADERS | END_STREAM, 1, END)


# Streams.


def test_an_early_answer_tells_the_client_to_stop_and_what_was_under_way_is_ignored() -> None:
    talk = Talk()
    talk.say(request(1))
    talk.server.end_response(1, HEAD + END)
    told = talk.told()
    assert told[0] == Frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD + END)
    assert (told[1].kind, code_of(told[1])) == (RST_STREAM, Code.NO_ERROR)
    talk.took()
    assert talk.say(data(1, b"late") + data(1, b"", ends=True) + rst_stream(1)) == []
    assert talk.took() == []
    assert not talk.server.is_closed


def test_one_that_has_said_all_is_not_told_to_stop() -> None:
    talk = Talk()
    talk.say(request(1, ends=True))
    talk.server.end_response(1, HEAD + END)
    assert [one.kind for one in talk.told()] == [HEADERS]


def test_one_stream_too_many_is_refused_and_may_come_again() -> None:
    talk = Talk()
    told = talk.say(b"".join(request(number) for number in (1, 3, 5, 7, 9)))
    assert [(one.kind, one.stream_id, code_of(one)) for one in told] == [(RST_STREAM, 9, Code.REFUSED_STREAM)]
    talk.server.end_response(1, HEAD + END)
    talk.told()
    talk.took()
    assert talk.say(request(11)) == []
    assert [one.stream_id for one in talk.took() if isinstance(one, RequestReceived)] == [11]


@pytest.mark.parametrize("is_known", [False, True], ids=["each-another", "all-the-same"])
@pytest.mark.parametrize("has_table", [False, True], ids=["no-table", "table"])
def test_headers_of_open_streams_have_a_bound_together(has_table: bool, is_known: bool) -> None:
    talk, encoder = Talk(BOUNDS._replace(headers_bytes=19_000)), Encoder()

    def begun(number: int) -> bytes:
        more = ("x-mq-request-id" if is_known else f"x-a{number}", "b" * (120 if is_known else 5_000))
        many = [more] if not is_known else [more, ("x-b", "c" * 5_000)]
        if not has_table:
            return request(number, *many)
        return frame(HEADERS, END_HEADERS, number, encoder.encode([*http2_client.REQUEST, *many]))

    told = [one for number in (1, 3, 5, 7) for one in talk.say(begun(number))]
    assert [(one.stream_id, code_of(one)) for one in told] == [(7, Code.REFUSED_STREAM)]
    talk.server.end_response(1, HEAD + END)
    talk.told()
    talk.took()
    assert talk.say(begun(9)) == []
    assert [one.stream_id for one in talk.took() if isinstance(one, RequestReceived)] == [9]


def test_a_request_that_says_too_much_can_be_refused() -> None:
    talk = Talk()
    talk.say(
        frame(HEADERS, 0, 1, block(("x-a", "b" * 17_000))[:16_000])
        + frame(CONTINUATION, END_HEADERS, 1, block(("x-a", "b" * 17_000))[16_000:])
    )
    assert talk.took() == [HeadersTooLong(1)]
    talk.server.end_response(1, HEAD + END)
    assert [one.kind for one in talk.told()] == [HEADERS, RST_STREAM]


@pytest.mark.parametrize(
    ("declared", "sent", "is_well"),
    [
        ("5", b"asked", True),
        ("4", b"asked", False),
        ("6", b"asked", False),
        ("x", b"asked", False),
        ("0", b"", True),
    ],
)
@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_body_is_as_long_as_its_request_says(
    declared: str, sent: bytes, is_well: bool, in_pieces: bool
) -> None:
    talk = Talk()
    body = data(1, sent, ends=True)
    if in_pieces:
        body = data(1, sent[:2]) + data(1, sent[2:], ends=True)
    told = talk.say(request(1, ("content-length", declared)) + body)
    assert (told == []) == is_well
    if not is_well:
        assert code_of(told[0]) == Code.PROTOCOL_ERROR


def test_trailers_end_a_request() -> None:
    talk = Talk()
    talk.say(request(1) + data(1, b"asked"))
    talk.took()
    talk.say(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(fields=(("x-a", "b"),))))
    assert talk.took() == [DataReceived(1, b"", is_end=True)]


STREAM_ERRORS: list[tuple[bytes, Code]] = [
    (request(1, fields=REQUEST[1:]), Code.PROTOCOL_ERROR),
    (request(1) + frame(HEADERS, END_HEADERS, 1, block(fields=(("x-a", "b"),))), Code.PROTOCOL_ERROR),
    (
        request(1) + frame(HEADERS, END_HEADERS | END_STREAM, 1, block(fields=((":path", "/"),))),
        Code.PROTOCOL_ERROR,
    ),
    (request(1) + window_update(1, 0), Code.PROTOCOL_ERROR),
    (request(1) + window_update(1, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    (request(1, ends=True) + data(1, b"more"), Code.STREAM_CLOSED),
    (request(1) + frame(PRIORITY, 0, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
    (request(1) + frame(PRIORITY, 0, 1, b"\0\0\0\x01\x10"), Code.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(("said", "code"), STREAM_ERRORS)
def test_what_breaks_a_rule_of_a_stream_ends_that_stream_alone(said: bytes, code: Code) -> None:
    talk = Talk()
    told = talk.say(said)
    assert [(one.kind, one.stream_id, code_of(one)) for one in told] == [(RST_STREAM, 1, code)]
    talk.took()
    assert talk.say(request(3) + data(3, b"asked", ends=True)) == []
    assert [one.stream_id for one in talk.took() if isinstance(one, RequestReceived)] == [3]
    assert not talk.server.is_closed


CONNECTION_ERRORS: list[tuple[bytes, Code]] = [
    (frame(DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    (data(1, b"x"), Code.PROTOCOL_ERROR),
    (frame(HEADERS, END_HEADERS, 0, block()), Code.PROTOCOL_ERROR),
    (request(2), Code.PROTOCOL_ERROR),
    (request(5, ends=True) + request(3), Code.PROTOCOL_ERROR),
    (request(1, ends=True) + request(1), Code.STREAM_CLOSED),
    (frame(HEADERS, END_HEADERS, 1, b"\x80"), Code.COMPRESSION_ERROR),
    (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + block()), Code.PROTOCOL_ERROR),
    (frame(HEADERS, END_HEADERS | PRIORITISED, 1, b"\0\0\0\x01\x10" + block()), Code.PROTOCOL_ERROR),
    (frame(HEADERS, END_HEADERS | PRIORITISED, 1, b"\0\0"), Code.FRAME_SIZE_ERROR),
    (frame(HEADERS, 0, 1, block()) + frame(PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
    (frame(HEADERS, 0, 1, block()) + frame(0xFA, 0, 0, b""), Code.PROTOCOL_ERROR),
    (frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, END_HEADERS, 3, b""), Code.PROTOCOL_ERROR),
    (frame(CONTINUATION, END_HEADERS, 1, block()), Code.PROTOCOL_ERROR),
    (request(1) + frame(DATA, PADDED, 1, b"\x05abc"), Code.PROTOCOL_ERROR),
    (frame(PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
    (rst_stream(0), Code.PROTOCOL_ERROR),
    (rst_stream(1), Code.PROTOCOL_ERROR),
    (request(1) + frame(RST_STREAM, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
    (frame(SETTINGS, 0, 1, b""), Code.PROTOCOL_ERROR),
    (frame(SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
    (frame(SETTINGS, ACK, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
    (settings(push=2), Code.PROTOCOL_ERROR),
    (settings(window=2**31), Code.FLOW_CONTROL_ERROR),
    (settings(frame=16_383), Code.PROTOCOL_ERROR),
    (settings(frame=2**24), Code.PROTOCOL_ERROR),
    (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), Code.PROTOCOL_ERROR),
    (frame(PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    (frame(PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    (frame(GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    (window_update(0, 0), Code.PROTOCOL_ERROR),
    (window_update(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    (window_update(1, 1), Code.PROTOCOL_ERROR),
    (frame(WINDOW_UPDATE, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
    (frame(DATA, 0, 1, bytes(16_385)), Code.FRAME_SIZE_ERROR),
]


@pytest.mark.parametrize(("said", "code"), CONNECTION_ERRORS)
def test_what_breaks_a_rule_of_the_connection_ends_it_with_a_sentence(said: bytes, code: Code) -> None:
    talk = Talk()
    told = talk.say(said)
    assert (told[-1].kind, code_of(told[-1])) == (GOAWAY, code)
    ended = talk.took()[-1]
    assert isinstance(ended, ConnectionEnded)
    assert ended.why
    assert told[-1].payload[8:].decode() == ended.why
    assert talk.say(request(99)) == []


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", PREFACE + request(1), PREFACE + frame(SETTINGS, ACK, 0), PREFACE[:-1] + b"x"],
)
def test_who_does_not_begin_as_http2_does_is_sent_away(said: bytes) -> None:
    talk = Talk(greeting=b"")
    assert code_of(talk.say(said)[-1]) == Code.PROTOCOL_ERROR
    assert talk.server.is_closed


def test_what_is_unknown_is_ignored() -> None:
    talk = Talk()
    said = frame(0xFA, 0xFF, 7, b"unknown") + frame(SETTINGS, 0, 0, b"\x99\x99" + bytes(4))
    assert [one.kind for one in talk.say(said)] == [SETTINGS]
    assert talk.say(frame(PRIORITY, 0, 77, b"\0\0\0\x01\x10")) == []


# Bounds.


@pytest.mark.parametrize(
    "flood",
    [
        lambda number: frame(SETTINGS, 0, 0, b""),
        lambda number: frame(PRIORITY, 0, 1, b"\0\0\0\x03\x10"),
        lambda number: window_update(0, 1),
        lambda number: data(1, b""),
        lambda number: frame(0xFA, 0, 0, b""),
        lambda number: request(2 * number + 3) + rst_stream(2 * number + 3),
        lambda number: request(2 * number + 3, fields=REQUEST[1:]),
        lambda number: frame(GOAWAY, 0, 0, bytes(8)),
    ],
    ids=["settings", "priority", "windows", "empty", "unknown", "resets", "malformed", "goaways"],
)
def test_frames_that_bring_nothing_forward_have_a_bound_which_time_moves(flood: Any) -> None:
    talk = Talk()
    talk.say(request(1))
    for number in range(60):
        told = talk.say(flood(number))
        if talk.server.is_closed:
            break
    assert 40 <= number <= 51
    assert code_of(told[-1]) == Code.ENHANCE_YOUR_CALM
    slow = Talk()
    slow.say(request(1))
    for number in range(300):
        slow.now += 1 / BOUNDS.idle_frames_per_second
        slow.say(flood(number))
    assert not slow.server.is_closed


def test_who_is_answered_may_say_more() -> None:
    talk = Talk()
    for number in range(1_000):
        talk.say(request(2 * number + 1) + data(2 * number + 1, b"x", ends=True) + window_update(0, 1))
        talk.server.send_response(2 * number + 1, HEAD, b"told", END)
        talk.told()
    assert not talk.server.is_closed


def test_a_header_block_that_goes_on_and_on_ends_the_connection() -> None:
    talk = Talk(BOUNDS._replace(idle_frames=100_000))
    told = talk.say(frame(HEADERS, 0, 1, b""))
    for _ in range(20):
        told = talk.say(frame(CONTINUATION, 0, 1, bytes(2_000)))
        if talk.server.is_closed:
            break
    assert code_of(told[-1]) == Code.ENHANCE_YOUR_CALM


def test_what_nobody_reads_has_a_bound() -> None:
    talk = Talk(
        BOUNDS._replace(waiting_bytes=1_000), greeting=PREFACE + settings(window=0) + frame(SETTINGS, ACK, 0)
    )
    talk.say(request(1, ends=True))
    talk.server.begin_response(1, HEAD)
    talk.server.send_data(1, bytes(900))
    assert not talk.server.is_closed
    talk.server.send_data(1, bytes(900))
    assert code_of(talk.told()[-1]) == Code.ENHANCE_YOUR_CALM
    assert isinstance(talk.took()[-1], ConnectionEnded)


# Pings.


def test_pings_are_answered_and_too_many_end_the_connection_by_grpcs_rule() -> None:
    talk = Talk()
    for _ in range(5):
        assert talk.say(frame(PING, 0, 0, b"12345678")) == [Frame(PING, ACK, 0, b"12345678")]
        talk.now += BOUNDS.ping_seconds
    for _ in range(3):
        talk.say(frame(PING, 0, 0, bytes(8)))
        assert not talk.server.is_closed
    told = talk.say(frame(PING, 0, 0, bytes(8)))
    assert code_of(told[-1]) == Code.ENHANCE_YOUR_CALM
    assert told[-1].payload[8:] == b"too_many_pings"


def test_who_measures_while_it_receives_may_ping() -> None:
    talk = Talk()
    talk.say(request(1, ends=True))
    talk.server.begin_response(1, HEAD)
    for _ in range(20):
        talk.say(frame(PING, 0, 0, bytes(8)))
        talk.server.send_data(1, b"more")
        talk.told()
    assert not talk.server.is_closed


def test_a_silent_client_is_asked_whether_it_is_there() -> None:
    talk = Talk()
    assert talk.server.check_limits(talk.now + 29, 30, 10)
    assert talk.told() == []
    assert talk.server.check_limits(talk.now + 30, 30, 10)
    (asked,) = talk.told()
    assert (asked.kind, asked.flags) == (PING, 0)
    assert talk.server.check_limits(talk.now + 39, 30, 10)
    assert not talk.server.check_limits(talk.now + 40, 30, 10)
    talk.now += 40
    talk.say(frame(PING, ACK, 0, asked.payload))
    assert talk.server.check_limits(talk.now + 1, 30, 10)


# The end.


def test_a_server_that_leaves_serves_what_has_begun() -> None:
    talk = Talk()
    talk.say(request(1))
    talk.server.shut_down()
    first, asked = talk.told()
    assert (first.kind, int.from_bytes(first.payload[:4], "big"), code_of(first)) == (GOAWAY, 2**31 - 1, 0)
    assert talk.say(request(3)) == []
    (last,) = talk.say(frame(PING, ACK, 0, asked.payload))
    assert (last.kind, int.from_bytes(last.payload[:4], "big")) == (GOAWAY, 3)
    talk.took()
    assert talk.say(request(5) + data(5, b"late", ends=True)) == []
    assert talk.took() == []
    for stream_id in (1, 3):
        assert not talk.server.is_closed
        talk.server.end_response(stream_id, HEAD + END)
    assert talk.took() == [ConnectionEnded(Code.NO_ERROR, "")]
    assert talk.server.is_closed


def test_a_client_keeps_its_table_until_it_has_acknowledged_that_it_is_to_have_none() -> None:
    talk, encoder = Talk(), Encoder()
    for stream_id in (1, 3):
        talk.say(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, encoder.encode(REQUEST)))
    talk.server.disable_table()
    talk.server.disable_table()
    (asked,) = talk.told()
    assert (asked.kind, asked.payload) == (SETTINGS, bytes((0, 1, 0, 0, 0, 0)))
    talk.say(frame(HEADERS, END_HEADERS | END_STREAM, 5, encoder.encode(REQUEST)))
    talk.say(frame(SETTINGS, ACK, 0))
    encoder.header_table_size = 0
    talk.say(frame(HEADERS, END_HEADERS | END_STREAM, 7, encoder.encode(REQUEST)))
    asked_for = [one.head.fields for one in talk.took() if isinstance(one, RequestReceived)]
    assert asked_for == [dict(REQUEST)] * 4
    assert not talk.server.uses_table
    talk.say(frame(HEADERS, END_HEADERS | END_STREAM, 9, b"\xbe"))
    assert talk.server.is_closed


def test_settings_that_were_not_sent_cannot_be_acknowledged() -> None:
    talk = Talk()
    assert code_of(talk.say(frame(SETTINGS, ACK, 0))[-1]) == Code.PROTOCOL_ERROR


def test_an_idle_client_is_let_go_at_once() -> None:
    talk = Talk()
    talk.server.shut_down()
    _, asked = talk.told()
    talk.say(frame(PING, ACK, 0, asked.payload))
    assert talk.took() == [ConnectionEnded(Code.NO_ERROR, "")]


def test_fields_of_an_answer_are_read_by_any_decoder() -> None:
    assert fields_of(HEAD + END) == {":status": "200", "grpc-status": "0"}


@given(st.lists(st.binary(max_size=60), max_size=8), st.booleans())
def test_any_bytes_are_understood_or_refused(pieces: list[bytes], is_greeted: bool) -> None:
    talk = Talk(greeting=GREETING if is_greeted else b"")
    for piece in pieces:
        talk.say(piece)
    assert talk.server.stream_count <= BOUNDS.streams
