"""Execution of the calls of one event loop iteration.

They are executed in order and answered when they are durable.

    calls that a transport received in an iteration --list--> take --> executed in the core, in order
                                                                         |
    tell(reply in bytes) <-- durable after a flush <-- deque by offset <-+

A prompt RPC (`services.rpc.serving.service.Prompt`) waits only for the disk, so its calls require no task,
coroutine or future.

Rules:
- Calls are executed in order of arrival. If too much data waits for the disk, a call that appends much data
  waits in `services.live.room`. Later calls that append nothing are executed in the meantime.
- Every call gets exactly one reply with a status. A refusal that depends on records is sent when these
  records are durable. Disk failures and bugs are also reported in the status.
- A call is executed even if its caller has disconnected. In this case, `tell` discards the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from time import monotonic
from typing import Any

import structlog

from services.live.durability import required_offset
from services.live.errors import DiskBehind
from services.live.live_broker import LiveBroker
from services.rpc.generated.definition_pb2 import Code, Status
from services.rpc.serving.service import NoClientId, Observe, Prompt, no_records, status_of
from services.rpc.wire.caller import Caller
from services.rpc.wire.replies import DecidedReply
from services.rpc.wire.statuses import BUG, name_of
from tidewheel.errors import TidewheelError

log = structlog.get_logger()

Tell = Callable[[bytes, str], None]
"""Receives an encoded reply and the name of its status code."""


class Call:
    """A call of a prompt RPC: its request with the encoded size, the caller, and the function that receives
    the reply.

    After execution, `code` is the name of the reply's status code, and `then` is a function that is called
    when the reply is sent.
    """

    __slots__ = (
        "caller",
        "code",
        "name",
        "observe",
        "request",
        "request_bytes",
        "rpc",
        "started",
        "tell",
        "then",
    )

    def __init__(
        self,
        name: str,
        rpc: Prompt,
        request: Any,
        request_bytes: int,
        caller: Caller,
        tell: Tell,
        observe: Observe,
    ) -> None:
        self.name, self.rpc, self.caller = name, rpc, caller
        self.request, self.request_bytes = request, request_bytes
        self.tell, self.observe, self.started = tell, observe, monotonic()
        self.code = "OK"
        self.then: Callable[[], None] | None = None

    def answer(self, reply: bytes) -> None:
        """Send the reply."""
        self.observe(self.name, self.code, monotonic() - self.started)
        if self.then is not None:
            self.then()
        self.tell(reply, self.code)

    def refuse(self, error: TidewheelError) -> None:
        """Reply that the result of the call is unknown."""
        self.code, self.then = name_of(type(error)), None
        self.answer(refused(self.rpc, status_of(error)))


class CallScheduler:
    """Executes calls on a live broker."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live
        self._waiting: set[asyncio.Task[None]] = set()

    def take(self, calls: Iterable[Call]) -> None:
        """Execute the calls of an iteration, in order. A call without a client id is refused individually."""
        for rpc, run in groupby(calls, lambda call: call.rpc if call.caller.client_id else None):
            if rpc is None:
                for call in run:
                    self._give(call, NoClientId())
            elif rpc.appends is no_records:
                self._decide(rpc, list(run))
            else:
                self._decide_where_room(rpc, list(run))

    def _decide_where_room(self, rpc: Prompt, calls: list[Call]) -> None:
        room = self._live.room
        if room.has_room_for_all(sum([rpc.appends(call.request) for call in calls])):
            self._decide(rpc, calls)
            return
        for call in calls:
            if room.has_room_for(new_bytes := rpc.appends(call.request)):
                self._decide(rpc, [call])
            else:
                self._keep(asyncio.ensure_future(self._wait(call, new_bytes)))

    def _decide(self, rpc: Prompt, calls: list[Call]) -> None:
        answers: Sequence[DecidedReply | Exception]
        try:
            answers = rpc.decide([(call.request, call.caller) for call in calls])
        except Exception as bug:
            answers = [bug] * len(calls)
        for call, answer in zip(calls, answers, strict=True):
            self._give(call, answer)

    def _give(self, call: Call, answer: DecidedReply | Exception) -> None:
        if isinstance(answer, DecidedReply):
            offset, reply, call.code, call.then = answer
        else:
            status, offset = self._status_of(call, answer), required_offset(answer)
            call.code, reply = Code.Name(status.code), refused(call.rpc, status)
        self._live.answers.send_when_durable(offset, call, reply)

    def _status_of(self, call: Call, error: Exception) -> Status:
        if isinstance(error, (TidewheelError, NoClientId, OSError)):
            return status_of(error)
        log.error("bug while answering", rpc=call.name, exc_info=error)
        return BUG

    async def _wait(self, call: Call, new_bytes: int) -> None:
        """Execute a call when there is room for its data."""
        try:
            await self._live.room.wait(new_bytes, call.request_bytes)
        except DiskBehind as behind:
            self._decide_refusing(call, behind)
        else:
            self._decide(call.rpc, [call])

    def _decide_refusing(self, call: Call, behind: DiskBehind) -> None:
        """Refuse a call for which there is no room, except a repeated send whose message is already
        stored.
        """
        if call.rpc.takes_new:
            with self._live.refusing_new_messages(behind):
                self._decide(call.rpc, [call])
        else:
            self._give(call, behind)

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task until it ends, because an event loop holds only weak references."""
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)


def refused(rpc: Prompt, status: Status) -> bytes:
    """Return an encoded reply that contains only a status."""
    reply: bytes = rpc.reply(status=status).SerializeToString()
    return reply
