"""What waits for room, and what a call is told when the disk fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from commitlog import limits
from commitlog.errors import TidewheelError
from commitlog.message import MessageType
from services.rpc.caller import Caller
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.service import Prompt
from services.rpc.turns import Call

BODY = b"." * 1_000


def test_a_call_that_appends_a_copy_holds_no_more_than_its_request_while_it_waits(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred ends of transactions wait at once: at the size of a copy each the 17th would be refused."""

    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.TRANSACTION, 1)
        reply = await front.send("t", BODY, message_id="M", message_type=wire.TRANSACTION)
        monkeypatch.setattr(limits, "CALLERS_UNFLUSHED_BYTES_MAX", 1)
        stuck = asyncio.Event()
        begin, front.live._flushing._begin = front.live._flushing._begin, stuck.set
        first = asyncio.create_task(front.call("EndTransaction", end(reply.entries[0].transaction_id)))
        await asyncio.sleep(0)
        others = [asyncio.create_task(front.call("EndTransaction", end("x" * 20))) for _ in range(200)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(one.done() for one in (first, *others))
        front.live._flushing._begin = begin
        begin()
        assert (await first).status.code == Code.OK
        assert {one.status.code for one in await asyncio.gather(*others)} == {Code.INVALID_TRANSACTION_ID}

    play(scenario)


def end(transaction_id: str) -> service.EndTransactionRequest:
    return service.EndTransactionRequest(
        topic=wire.Resource(name="t"), message_id="M", transaction_id=transaction_id, resolution=wire.COMMIT
    )


def test_what_was_to_be_done_with_a_reply_is_not_done_when_the_disk_failed() -> None:
    told: list[str] = []
    done: list[str] = []
    rpc = Prompt(
        service.EndTransactionRequest, service.EndTransactionResponse, lambda *_: (0, b"", "OK", None)
    )
    call = Call(
        "EndTransaction", rpc, end("x"), Caller(""), lambda _, code: told.append(code), lambda *_: None
    )
    call.then = lambda: done.append("x")
    call.refuse(TidewheelError("the disk failed"))
    assert told == [TidewheelError.status]
    assert done == []
