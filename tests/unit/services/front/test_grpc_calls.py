"""Calls of gRPC over one connection: what is asked, what is refused, and what is answered."""

from __future__ import annotations

import gzip

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
from services.front.http2 import ConnectionEnded, ConnectionLimits, StreamDrained
from tests.http2_client import (
    DATA,
    END_STREAM,
    GREETING,
    HEADERS,
    REQUEST,
    RST_STREAM,
    WINDOW_UPDATE,
    Frame,
    data,
    fields_of,
    frames,
    request,
    rst_stream,
)

UNARY, STREAM = Method("unary", takes_stream=False), Method("stream", takes_stream=True)
METHODS = {"/s/Unary": UNARY, "/s/Stream": STREAM}
TO_UNARY = tuple((name, "/s/Unary" if name == ":path" else value) for name, value in REQUEST)
TO_STREAM = tuple((name, "/s/Stream" if name == ":path" else value) for name, value in REQUEST)


class Talk:
    def __init__(self, parts: RequestMemory | None = None) -> None:
        self.parts = parts or RequestMemory()
        self.server = GrpcCalls(METHODS.get, ConnectionLimits(streams=10), {}, self.parts, 0.0)
        self.events: list[Event] = []
        self.say(GREETING)

    def say(self, said: bytes) -> list[Frame]:
        self.events += self.server.receive(said, 0.0)
        return self.told()

    def told(self) -> list[Frame]:
        return frames(self.server.http2.take_output())

    def took(self) -> list[Event]:
        events, self.events = self.events + self.server.events(), []
        return events


def status_of(told: list[Frame]) -> dict[str, str]:
    """The fields of the answer's last HEADERS, which must end it."""
    last = [one for one in told if one.kind == HEADERS][-1]
    assert last.flags & END_STREAM
    return fields_of(last.payload)


@pytest.mark.parametrize("cut", [None, 0, 3, 7])
def test_a_call_and_its_reply(cut: int | None) -> None:
    talk, body = Talk(), frame_message(b"asked")
    if cut is None:
        talk.say(request(1, fields=TO_UNARY) + data(1, body, ends=True))
    else:
        talk.say(request(1, fields=TO_UNARY))
        talk.say(data(1, body[:cut]))
        talk.say(data(1, body[cut:]) + data(1, b"", ends=True))
    (called,) = talk.took()
    assert isinstance(called, CallReceived)
    assert (called.stream_id, called.method, called.message) == (1, UNARY, b"asked")
    assert called.head.get("x-mq-client-id") == "client-1"
    assert talk.parts.held_bytes == 0
    talk.server.reply(1, b"told")
    told = talk.told()
    assert [one.payload for one in told if one.kind == DATA] == [frame_message(b"told")]
    assert status_of(told)["grpc-status"] == "0"


def test_a_stream_of_requests_and_of_replies() -> None:
    talk = Talk()
    talk.say(request(1, fields=TO_STREAM))
    (began,) = talk.took()
    assert isinstance(began, CallStarted)
    talk.say(data(1, frame_message(b"one") + frame_message(b"two")[:4]))
    talk.say(data(1, frame_message(b"two")[4:], ends=True))
    assert talk.took() == [MessageReceived(1, b"one")]
    assert talk.server.finish_message(1) == [MessageReceived(1, b"two")]
    assert talk.parts.held_bytes == 3
    assert talk.server.finish_message(1) == [HalfClosed(1)]
    assert talk.parts.held_bytes == 0
    for message in (b"a", b"b"):
        talk.server.send_message(1, message)
    talk.server.end(1)
    told = talk.told()
    assert [one.payload for one in told if one.kind == DATA] == [frame_message(b"a"), frame_message(b"b")]
    assert len([one for one in told if one.kind == HEADERS]) == 2
    assert status_of(told) == {"grpc-status": "0"}


def test_a_compressed_request_is_taken() -> None:
    talk = Talk()
    packed = gzip.compress(b"asked" * 100)
    body = b"\x01" + len(packed).to_bytes(4, "big") + packed
    talk.say(request(1, ("grpc-encoding", "gzip"), fields=TO_UNARY) + data(1, body, ends=True))
    (called,) = talk.took()
    assert isinstance(called, CallReceived)
    assert called.message == b"asked" * 100


@pytest.mark.parametrize(
    ("more", "fields", "body", "status"),
    [
        ((), REQUEST, frame_message(b"x"), Status.UNIMPLEMENTED),
        ((("grpc-encoding", "br"),), TO_UNARY, frame_message(b"x"), Status.UNIMPLEMENTED),
        ((), TO_UNARY, b"", Status.INTERNAL),
        ((), TO_UNARY, frame_message(b"x")[:-1], Status.INTERNAL),
        ((), TO_UNARY, frame_message(b"x") * 2, Status.INTERNAL),
        ((), TO_UNARY, b"\x01" + frame_message(b"x")[1:], Status.INTERNAL),
        ((), TO_UNARY, b"\0\xff\xff\xff\xff", Status.RESOURCE_EXHAUSTED),
        ((("x-a", "b" * 17_000),), TO_UNARY, frame_message(b"x"), Status.RESOURCE_EXHAUSTED),
    ],
    ids=["no method", "encoding", "no message", "cut off", "two", "compressed", "too long", "many fields"],
)
def test_what_cannot_be_served_is_refused_with_a_sentence(
    more: tuple[tuple[str, str], ...], fields: tuple[tuple[str, str], ...], body: bytes, status: Status
) -> None:
    talk = Talk()
    told = talk.say(request(1, *more, fields=fields) + data(1, body, ends=True))
    said = status_of(told)
    assert said["grpc-status"] == str(int(status))
    assert said["grpc-message"]
    assert said[":status"] == "200"
    assert talk.took() == []
    assert talk.server.http2.stream_count == 0
    assert talk.parts.held_bytes == 0
    talk.say(request(3, fields=TO_UNARY) + data(3, frame_message(b"well"), ends=True))
    assert isinstance(talk.took()[0], CallReceived)


@pytest.mark.parametrize(
    ("changed", "status"),
    [({":method": "GET"}, "405"), ({":method": "PUT"}, "405"), ({"content-type": "text/html"}, "415")],
)
def test_what_is_no_grpc_is_answered_by_http(changed: dict[str, str], status: str) -> None:
    talk = Talk()
    fields = tuple((name, changed.get(name, value)) for name, value in TO_UNARY)
    told = talk.say(request(1, fields=fields, ends=True))
    assert fields_of(told[0].payload)[":status"] == status
    assert len(b"".join(one.payload for one in told if one.kind == DATA)) > 5
    assert told[-1].flags & END_STREAM


def test_content_types_with_a_suffix_are_taken_and_no_te_is_needed() -> None:
    talk = Talk()
    fields = tuple(
        (name, "application/grpc+proto" if name == "content-type" else value)
        for name, value in TO_UNARY
        if name not in ("te", ":authority")
    )
    talk.say(request(1, ("host", "h"), fields=fields) + data(1, frame_message(b"x"), ends=True))
    assert isinstance(talk.took()[0], CallReceived)


def test_who_goes_is_told_of_and_nothing_of_it_is_held() -> None:
    talk = Talk()
    talk.say(request(1, fields=TO_STREAM) + data(1, frame_message(bytes(100))[:50]))
    assert talk.parts.held_bytes == 50
    talk.took()
    talk.say(rst_stream(1))
    assert talk.took() == [CallCancelled(1)]
    assert talk.parts.held_bytes == 0
    talk.server.send_message(1, b"late")
    talk.server.end(1)
    assert talk.told() == []


def test_a_stream_that_says_what_is_none_is_ended_and_its_server_told() -> None:
    talk = Talk()
    talk.say(request(1, fields=TO_STREAM))
    told = talk.say(data(1, b"\x07\0\0\0\x01x"))
    assert status_of(told)["grpc-status"] == str(int(Status.INTERNAL))
    assert told[-1].kind == RST_STREAM
    assert isinstance(talk.took()[-1], CallCancelled)


def test_an_early_end_takes_no_more_of_the_request() -> None:
    talk = Talk()
    talk.say(request(1, fields=TO_STREAM) + data(1, frame_message(b"whole") + b"\0\0"))
    talk.took()
    talk.server.end(1, Status.NOT_FOUND, "gone")
    assert status_of(talk.told())["grpc-message"] == "gone"
    talk.say(data(1, b"\0\0\x01x", ends=True))
    assert talk.took() == []
    assert talk.parts.held_bytes == 0


@pytest.mark.parametrize("bound", ["REQUESTS_BYTES_MAX", "REQUESTS_PER_CONNECTION_BYTES_MAX"])
def test_a_connection_and_all_together_hold_so_much_of_requests_that_have_not_come_whole(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, bound, 10_000)
    parts = RequestMemory()
    first = Talk(parts)
    second = Talk(parts) if bound == "REQUESTS_BYTES_MAX" else first
    first.say(request(1, fields=TO_UNARY) + data(1, frame_message(bytes(20_000))[:3_000]))
    held_bytes = parts.held_bytes
    assert 3_000 < held_bytes < 8_000
    told = second.say(request(3, fields=TO_UNARY) + data(3, frame_message(bytes(20_000))[:3_000]))
    assert status_of(told)["grpc-status"] == str(int(Status.RESOURCE_EXHAUSTED))
    assert parts.held_bytes == held_bytes
    first.say(rst_stream(1))
    assert parts.held_bytes == 0
    second.took()
    second.say(request(5, fields=TO_UNARY) + data(5, frame_message(b"x"), ends=True))
    assert isinstance(second.took()[0], CallReceived)


def test_a_stream_that_is_not_read_stops_its_client() -> None:
    talk = Talk()
    talk.say(request(1, fields=TO_STREAM))
    sent = 0
    while sent + 16_000 <= ConnectionLimits().stream_window_bytes:
        told = talk.say(data(1, frame_message(bytes(15_995))))
        sent += 16_000
        assert not any(one.kind == WINDOW_UPDATE and one.stream_id for one in told)
    assert [type(one) for one in talk.took()] == [CallStarted, MessageReceived]
    while talk.server.finish_message(1):
        pass
    assert any(one.kind == WINDOW_UPDATE and one.stream_id == 1 for one in talk.told())


def test_an_answer_that_cannot_be_ended_well_is_broken_off() -> None:
    talk = Talk()
    talk.say(request(1, fields=TO_STREAM))
    talk.server.send_message(1, b"a")
    talk.server.abort(1)
    assert talk.told()[-1].kind == RST_STREAM


def test_what_has_passed_is_told() -> None:
    talk = Talk()
    talk.say(request(1, fields=TO_STREAM))
    talk.took()
    talk.server.http2.is_full = True
    talk.server.send_message(1, b"a")
    assert talk.took() == []
    assert talk.server.resume() == [StreamDrained(1)]


def test_the_end_of_a_connection_is_told() -> None:
    talk = Talk()
    talk.say(request(1, fields=TO_STREAM))
    talk.took()
    talk.say(data(0, b"x"))
    gone, ended = talk.took()
    assert gone == CallCancelled(1)
    assert isinstance(ended, ConnectionEnded)
