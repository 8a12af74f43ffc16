"""One call to a prompt RPC, as a coroutine: a front has lists of them."""

from __future__ import annotations

import asyncio
from typing import Any

from services.live.live_broker import LiveBroker
from services.rpc.serving.service import Observe, Prompt
from services.rpc.serving.turns import Call, CallScheduler
from services.rpc.wire.caller import Caller


async def answered(
    live: LiveBroker, name: str, rpc: Prompt, request: Any, caller: Caller, observe: Observe
) -> Any:
    """Return the reply."""
    told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    tell = lambda reply, _: told.set_result(reply)  # noqa: E731
    CallScheduler(live).take([Call(name, rpc, request, request.ByteSize(), caller, tell, observe)])
    return rpc.reply.FromString(await told)
