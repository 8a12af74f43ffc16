"""The calls of one turn of the loop: decided one after the other, answered together when they are durable.

    a transport gathers the calls that came in a turn --list--> take --> each is decided in the core, in order
                                                                              |
    tell(reply in bytes) <-- all that a flush made durable <-- deque by offset +

A prompt RPC (`services.rpc.serving.service.Prompt`) waits for nothing but the disk: so a call of one costs no
task, coroutine or future.

Rules:
- Calls are decided in the order in which they came. One that appends much while too much waits for the disk
  waits for its turn in `services.live.room`, and those behind it that append nothing go on.
- Whatever happens a call gets one reply, which says so in its status: a refusal that rests on records, when
  these are durable; a disk that failed, as far as is known; a bug, too.
- A call whose caller has gone is decided all the same; `tell` takes its reply and drops it.
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
from services.rpc.wire.replies import Decided
from services.rpc.wire.statuses import BUG, name_of
from tidewheel.errors import TidewheelError

log = structlog.get_logger()

Tell = Callable[[bytes, str], None]
"""Takes a reply in bytes, and the name of its status' code."""


class Call:
    """A call of a prompt RPC: its request and the bytes it came in, the caller, and what takes the reply.

    When it is decided, `code` is the name of its reply's status code, and `then` what is to be done when the
    reply is told.
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
        """Tell the reply."""
        self.observe(self.name, self.code, monotonic() - self.started)
        if self.then is not None:
            self.then()
        self.tell(reply, self.code)

    def refuse(self, error: TidewheelError) -> None:
        """Tell that it is not known what became of the call."""
        self.code, self.then = name_of(type(error)), None
        self.answer(refused(self.rpc, status_of(error)))


class Turns:
    """Decides calls over `live`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live
        self._waiting: set[asyncio.Task[None]] = set()

    def take(self, calls: Iterable[Call]) -> None:
        """Decide the calls of a turn, in order; who does not say who it is learns that alone."""
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
        answers: Sequence[Decided | Exception]
        try:
            answers = rpc.decide([(call.request, call.caller) for call in calls])
        except Exception as bug:
            answers = [bug] * len(calls)
        for call, answer in zip(calls, answers, strict=True):
            self._give(call, answer)

    def _give(self, call: Call, answer: Decided | Exception) -> None:
        if isinstance(answer, Decided):
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
        """Decide a call when there is room for what it appends."""
        try:
            await self._live.room.wait(new_bytes, call.request_bytes)
        except DiskBehind as behind:
            self._decide_refusing(call, behind)
        else:
            self._decide(call.rpc, [call])

    def _decide_refusing(self, call: Call, behind: DiskBehind) -> None:
        """Refuse a call for which there is no room, but not a send that was stored when it came before."""
        if call.rpc.takes_new:
            with self._live.refusing_new_messages(behind):
                self._decide(call.rpc, [call])
        else:
            self._give(call, behind)

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it ends: a loop holds its tasks weakly."""
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)


def refused(rpc: Prompt, status: Status) -> bytes:
    """Return the reply that says no more than a status."""
    reply: bytes = rpc.reply(status=status).SerializeToString()
    return reply
