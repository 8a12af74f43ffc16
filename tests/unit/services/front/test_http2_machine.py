"""A machine of frames: whatever a client says and a server answers, the connection's books agree.

Longer: HYPOTHESIS_SECONDS=1800 .venv/bin/python -m pytest tests/unit/services/front/test_http2_machine.py
"""

from __future__ import annotations

import os
import time
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from services.front.http2 import (
    ConnectionEnded,
    ConnectionLimits,
    DataReceived,
    Http2Connection,
    RequestReceived,
    StreamDrained,
    StreamReset,
)
from services.front.http2_frames import Code
from tests import http2_client
from tests.http2_client import GREETING, block, data, frame, frames, request, rst_stream, window_update

BOUNDS = ConnectionLimits(
    streams=5,
    stream_window_bytes=100_000,
    connection_window_bytes=150_000,
    waiting_bytes=200_000,
    written_bytes=20_000,
    idle_frames=60,
    work_per_turn=5,
)
STREAMS = st.integers(0, 12)
"""Nearly always an open stream, by its place; now and then any."""
SIZES = st.sampled_from([0, 1, 50, 5_000, 16_384])
HEAD, END = b"\x88", b"\x00\x0bgrpc-status\x010"


class Machine(RuleBasedStateMachine):
    """A client that says anything, and a server that answers when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.server = Http2Connection(BOUNDS, {}, self.now)
        self.told: dict[int, int] = {}
        """Of each stream, the bytes of DATA that were said to the client."""
        self.sent: dict[int, int] = {}
        """Of each stream, the bytes of DATA that the server has said."""
        self.asked: set[int] = set()
        self.ended = False
        self.next_id = 1
        self.hear(GREETING)

    def hear(self, said: bytes) -> None:
        for event in self.server.receive(said, self.now):
            assert not self.ended, "an event came behind the end"
            match event:
                case RequestReceived(stream_id):
                    assert stream_id not in self.asked
                    self.asked.add(stream_id)
                case DataReceived(stream_id) | StreamDrained(stream_id):
                    assert stream_id in self.asked
                case StreamReset(stream_id):
                    self.asked.discard(stream_id)
                case ConnectionEnded():
                    self.ended = True
        self.take()

    def some(self, number: int) -> int:
        open_ids = list(self.server._streams)
        return open_ids[number % len(open_ids)] if open_ids and number % 5 else 2 * number + 1

    def take(self) -> None:
        for one in frames(self.server.take_output()):
            if one.kind == http2_client.DATA:
                self.told[one.stream_id] = self.told.get(one.stream_id, 0) + len(one.payload)
                assert self.told[one.stream_id] <= self.sent[one.stream_id]

    @rule(ends=st.booleans(), body=SIZES, skips=st.sampled_from([0, 0, 0, 2]))
    def ask(self, ends: bool, body: int, skips: int) -> None:
        stream_id, self.next_id = self.next_id + skips, self.next_id + skips + 2
        self.hear(request(stream_id) + data(stream_id, bytes(body), ends=ends))

    @rule(number=STREAMS, size=SIZES, ends=st.booleans())
    def say_more(self, number: int, size: int, ends: bool) -> None:
        stream_id = self.some(number)
        self.hear(data(stream_id, bytes(size), ends=ends))

    @rule(number=STREAMS, code=st.integers(0, 13))
    def break_off(self, number: int, code: int) -> None:
        stream_id = self.some(number)
        self.hear(rst_stream(stream_id, code))

    @rule(number=STREAMS, of_all=st.booleans(), size=st.sampled_from([1, 100, 30_000, 2**31 - 1]))
    def widen(self, number: int, of_all: bool, size: int) -> None:
        self.hear(window_update(0 if of_all else self.some(number), size))

    @rule(window=st.sampled_from([0, 1, 100, 65_535, 1_000_000]))
    def set_window(self, window: int) -> None:
        self.hear(http2_client.settings(window=window))

    @rule(kind=st.integers(0, 11), flags=st.integers(0, 255), number=STREAMS, payload=st.binary(max_size=40))
    def say_anything(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        stream_id = self.some(number)
        self.hear(frame(kind, flags, stream_id, payload))

    @rule(cut=st.integers(0, 120))
    def ask_in_pieces(self, cut: int) -> None:
        whole = block()
        first = frame(http2_client.HEADERS, 0, self.next_id, whole[:cut])
        self.hear(first + frame(http2_client.CONTINUATION, 4, self.next_id, whole[cut:]))
        self.next_id += 2

    @rule(number=STREAMS, size=SIZES, ends=st.booleans())
    def answer(self, number: int, size: int, ends: bool) -> None:
        stream_id = self.some(number)
        if stream_id in self.server._streams and not self.server._streams[stream_id].is_ended:
            self.sent[stream_id] = self.sent.get(stream_id, 0) + size
            self.server.begin_response(stream_id, HEAD)
            self.server.send_data(stream_id, bytes(size))
            if ends:
                self.server.end_response(stream_id, END)
        self.take()

    @rule(number=STREAMS, size=SIZES)
    def answer_at_once(self, number: int, size: int) -> None:
        stream_id = self.some(number)
        if stream_id in self.server._streams and not self.server._streams[stream_id].is_ended:
            self.sent[stream_id] = self.sent.get(stream_id, 0) + size
            self.server.send_response(stream_id, HEAD, bytes(size), END)
        self.take()

    @rule(number=STREAMS)
    def read_all(self, number: int) -> None:
        stream_id = self.some(number)
        if stream_id in self.server._streams:
            self.server.acknowledge_data(stream_id, self.server._streams[stream_id].held_bytes)
        self.take()

    @rule(number=STREAMS)
    def give_up(self, number: int) -> None:
        stream_id = self.some(number)
        self.server.reset_stream(stream_id, Code.INTERNAL_ERROR)

    @rule(is_full=st.booleans())
    def fill(self, is_full: bool) -> None:
        if is_full:
            self.server.is_full = True
        else:
            self.server.resume()
        self.take()

    @rule(seconds=st.sampled_from([0.01, 1.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.server.check_limits(self.now, 30.0, 10.0)

    @rule()
    def read_on(self) -> None:
        self.hear(b"")

    @rule()
    def leave(self) -> None:
        self.server.shut_down()

    @invariant()
    def the_books_agree(self) -> None:
        server: Any = self.server
        streams = server._streams.values()
        assert server._waiting_bytes == sum(one.waiting_bytes for one in streams) or server.is_closed
        assert all(one.waiting_bytes == sum(map(len, one.waiting or ())) for one in streams)
        assert server.stream_count <= BOUNDS.streams
        assert server._headers_bytes == sum(one.headers_bytes for one in streams) <= BOUNDS.headers_bytes
        assert server._send_window >= 0
        assert server.has_unread or len(server._rest) < 16_384 + 9
        assert not server._ready.keys() - server._streams.keys()
        assert not server._unsent_ends.keys() - server._streams.keys()
        if not server.is_closed:
            held = sum(one.held_bytes for one in streams)
            assert server._receive_window + server._unread_bytes + held == BOUNDS.connection_window_bytes
            assert server._receive_window >= 0


def test_the_books_agree_whatever_is_said() -> None:
    seconds, began, rounds = float(os.environ.get("HYPOTHESIS_SECONDS", "0")), time.monotonic(), 0
    how = settings(max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck))
    while rounds == 0 or time.monotonic() - began < seconds:
        run_state_machine_as_test(Machine, settings=how)
        rounds += 1
