"""gRPC's part of a front of our own: frames, deadlines, who calls."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rpc.server import caller_of


@pytest.fixture(scope="module")
def grpc(benchmarks: Any) -> Any:
    return benchmarks("front_grpc")


@given(
    messages=st.lists(st.binary(max_size=50), max_size=5),
    cuts=st.lists(st.integers(min_value=0, max_value=300), max_size=8),
)
def test_messages_come_out_whole_however_the_bytes_are_cut(
    grpc: Any, messages: list[bytes], cuts: list[int]
) -> None:
    sent = b"".join(map(grpc.framed, messages))
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    frames = grpc.Frames()
    parts = (sent[start:end] for start, end in pairwise(edges))
    assert [message for part in parts for message in frames.feed(part)] == messages


def test_a_compressed_message_and_one_too_large_are_refused_before_they_are_held(grpc: Any) -> None:
    with pytest.raises(grpc.BadCall) as compressed:
        grpc.Frames().feed(b"\1\0\0\0\1x")
    with pytest.raises(grpc.BadCall) as large:
        grpc.Frames(bytes_max=10).feed(b"\0\0\0\0\x0b")
    assert (compressed.value.status, large.value.status) == (grpc.UNIMPLEMENTED, grpc.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [("5S", 5.0), ("1500m", 1.5), ("2H", 7200.0), ("250u", 0.00025), ("00000001n", 1e-9)],
)
def test_a_deadline_is_read_as_grpc_writes_it(grpc: Any, timeout: str, seconds: float) -> None:
    assert grpc.seconds_of(timeout) == pytest.approx(seconds)


@pytest.mark.parametrize("timeout", ["", "S", "5", "-5S", "5s", "123456789S", "5 S"])
def test_what_is_no_deadline_is_none(grpc: Any, timeout: str) -> None:
    assert grpc.seconds_of(timeout) is None


def test_who_calls_is_the_same_as_behind_grpcio(grpc: Any) -> None:
    headers = {
        "x-mq-client-id": "one",
        "x-mq-language": "GO",
        "x-mq-client-version": "5.1",
        "authorization": "MQv2-HMAC-SHA1 Credential=a",
        "x-mq-date-time": "20260101T000000Z",
        "grpc-timeout": "20S",
    }
    context: Any = SimpleNamespace(
        invocation_metadata=lambda: tuple(headers.items()), peer=lambda: "peer", time_remaining=lambda: 20.0
    )
    assert grpc.caller_of(headers, "10.0.0.7") == caller_of(context, "10.0.0.7")
