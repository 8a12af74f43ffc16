"""A gRPC client that is one too many reads why, from the answer to its call."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.front.admission import Limits
from services.front.answers import TOO_MANY_SENTENCE
from services.front.front import Behind, Front, Peers
from services.front.grpc_refusal import asked_stream, refusal

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000006 04 00 00000000 000300000064")
CALL = bytes.fromhex("000001 01 05 00000003 88")


def test_the_first_call_is_found_behind_other_frames() -> None:
    assert asked_stream(PREFACE + SETTINGS + CALL) == 3
    assert asked_stream(PREFACE + SETTINGS) == 0


@given(st.binary(max_size=200))
def test_no_bytes_break_the_search_for_a_call(said: bytes) -> None:
    assert asked_stream(PREFACE + said) >= 0
    assert refusal("no", PREFACE + said)


def test_the_client_of_grpc_shows_the_sentence_and_does_not_try_again() -> None:
    async def scenario() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        refused: list[str] = []
        limits = Limits(connections_per_address=0)
        front = Front(Behind(1), limits, "", Peers(), lambda why, host: refused.append(why))
        await front.start(listening)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{listening.getsockname()[1]}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/any/Call")(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == TOO_MANY_SENTENCE
        assert len(refused) == 1
        await front.stop()

    asyncio.run(scenario())
