"""Which calls are taken in a turn of the loop: not more than it may take, and a large call in parts.

    calls of a turn --> Gathering --+-- up to CALLS_PER_TURN_MAX messages --------> Turns.take
                                    +-- the others: the next turn
    a call of more messages --> Parts --> calls of a part each, in turns that follow each other
                                  +--> one reply, when each part has its own

The entries of a whole reply are those of its parts, in order. A part that is refused as a whole has none, so
each of its messages gets one with the status of the part. A call whose parts are all refused so has the
first reply. A call of more than ENTRIES_PER_REQUEST_MAX messages is taken, and refused, whole.

Replies that are all OK are joined as bytes: protobuf reads two messages behind each other as one, with the
entries of both.

Cost: none for a call of one message; replies of which one is not OK are parsed and written once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from commitlog.limits import CALLS_PER_TURN_MAX, ENTRIES_PER_REQUEST_MAX
from services.rpc.generated.definition_pb2 import Code
from services.rpc.statuses import overall
from services.rpc.turns import Call, Turns

OK: Final = Code.Name(Code.OK)


class Gathering:
    """The calls that a transport has taken in this turn of the loop, for `turns` to take in one list.

    Those beyond `CALLS_PER_TURN_MAX` wait for the next turn: what is due, or durable, is seen to in between.
    A call of several messages counts as so many; one with more than a turn may take is taken in parts
    (`Parts`), each in a turn of its own.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns, self._loop = turns, asyncio.get_running_loop()
        self._calls: list[Call] = []

    def add(self, call: Call) -> None:
        """Have a call taken with all others of this turn."""
        if not self._calls:
            self._loop.call_soon(self._take)
        self._calls.append(call)

    def _take(self) -> None:
        count = self._count_of_turn()
        calls, self._calls = self._calls[:count], self._calls[count:]
        if count == 1 and CALLS_PER_TURN_MAX < messages_of(calls[0]) <= ENTRIES_PER_REQUEST_MAX:
            self._calls = Parts(calls[0]).calls + self._calls
            calls = [self._calls.pop(0)]
        self._turns.take(calls)
        if self._calls:  # behind what the calls began: a part that waits for room waits before the next part
            self._loop.call_soon(self._take)

    def _count_of_turn(self) -> int:
        """Return how many calls are taken in this turn: one at least."""
        entries = 0
        for number, call in enumerate(self._calls):
            entries += messages_of(call)
            if entries > CALLS_PER_TURN_MAX:
                return max(1, number)
        return len(self._calls)


class Parts:
    """A call of several messages as `calls` of fewer, which together answer it."""

    def __init__(self, call: Call) -> None:
        self._call, self._entries = call, call.rpc.entries
        assert self._entries is not None, "a call without messages has no parts"
        messages = [*getattr(call.request, self._entries.name)]
        self._parts = [
            Part(call.request, self._entries.name, messages[at : at + CALLS_PER_TURN_MAX])
            for at in range(0, len(messages), CALLS_PER_TURN_MAX)
        ]
        self._replies: dict[int, tuple[bytes, str]] = {}
        """By part its reply, and the name of the code of its status."""
        self.calls = [
            Call(call.name, call.rpc, part, call.caller, partial(self._told, number), _unobserved)
            for number, part in enumerate(self._parts)
        ]

    def _told(self, number: int, reply: bytes, code: str) -> None:
        """Take the reply to a part; answer the call with the last of them."""
        self._replies[number] = reply, code
        if len(self._replies) < len(self._parts):
            return
        replies, codes = zip(*(self._replies[one] for one in range(len(self._parts))), strict=True)
        if set(codes) == {OK}:
            self._call.answer(b"".join(replies))
            return
        whole = self._whole([self._call.rpc.reply.FromString(one) for one in replies])
        self._call.code = Code.Name(whole.status.code)
        self._call.answer(whole.SerializeToString())

    def _whole(self, replies: Sequence[Any]) -> Any:
        """Return the reply to the call, of those to its parts in order."""
        if not any(reply.entries for reply in replies):
            return replies[0]
        assert self._entries is not None, "a call without messages has no parts"
        whole = self._call.rpc.reply(status=overall([reply.status for reply in replies]))
        for part, reply in zip(self._parts, replies, strict=True):
            refused = (self._entries.refused(one, reply.status) for one in part.messages)
            whole.entries.extend(reply.entries or refused)
        return whole


class Part:
    """A request with a part of its messages; everything else is the request's own."""

    def __init__(self, request: Any, name: str, messages: Sequence[Any]) -> None:
        self._request, self.messages = request, messages
        setattr(self, name, messages)

    def __getattr__(self, name: str) -> Any:
        """Return a field of the request."""
        return getattr(self._request, name)

    def ByteSize(self) -> int:  # noqa: N802  # protobuf's name
        """Return how many bytes the messages have."""
        return sum(one.ByteSize() for one in self.messages)


def messages_of(call: Call) -> int:
    """Return how many messages a call is about, 1 at least."""
    entries = call.rpc.entries
    return 1 if entries is None else max(1, len(getattr(call.request, entries.name)))


def _unobserved(*_: object) -> None:
    """Count no call: the whole one is counted."""
