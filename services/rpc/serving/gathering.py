"""Which calls are taken in a turn of the loop: not more than it may take, and a large call in parts.

    calls of a turn --> Gathering --+-- up to CALLS_PER_TURN_MAX messages, and
                                    |   CALLS_PER_TURN_BYTES_MAX of them ----------> Turns.take
                                    +-- the others: the next turn
    a call of more --> Parts --> calls of a part each, in turns that follow each other
                         +--> one reply, when each part has its own

The entries of a whole reply are those of its parts, in order. A part that is refused as a whole has none, so
each of its messages gets one with the status of the part. A call whose parts are all refused so has the
first reply. A call of more than ENTRIES_PER_REQUEST_MAX messages is taken, and refused, whole.

Replies that are all OK are joined as bytes: protobuf reads two messages behind each other as one, with the
entries of both.

Cost: an addition for a call of one message. The bodies of a call of more bytes than a turn takes are read
once more, for their lengths; replies of which one is not OK are parsed and written once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from commitlog.limits import CALLS_PER_TURN_BYTES_MAX, CALLS_PER_TURN_MAX, ENTRIES_PER_REQUEST_MAX
from services.rpc.generated.definition_pb2 import Code
from services.rpc.serving.turns import Call, Turns
from services.rpc.wire.statuses import overall

OK: Final = Code.Name(Code.OK)


class Gathering:
    """The calls that a transport has taken in this turn of the loop, for `turns` to take in one list.

    Those beyond `CALLS_PER_TURN_MAX` messages or `CALLS_PER_TURN_BYTES_MAX` wait for the next turn: what is
    due, or durable, is seen to in between. A call of several messages counts as so many; one with more than a
    turn may take is taken in parts (`Parts`), each in a turn of its own.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns, self._loop = turns, asyncio.get_running_loop()
        self._calls: list[Call] = []
        self._is_scheduled = False

    def add(self, call: Call) -> None:
        """Have a call taken with all others of this turn."""
        self._calls.append(call)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        self._is_scheduled = False
        count = self._count_of_turn()
        calls, self._calls = self._calls[:count], self._calls[count:]
        if count == 1 and is_taken_in_parts(calls[0]):
            self._calls = Parts(calls[0]).calls + self._calls
            calls = [self._calls.pop(0)]
        self._turns.take(calls)
        if self._calls:  # behind what the calls began: a part that waits for room waits before the next part
            self._schedule()

    def _count_of_turn(self) -> int:
        """Return how many calls are taken in this turn: one at least."""
        entries = turn_bytes = 0
        for number, call in enumerate(self._calls):
            entries += messages_of(call)
            turn_bytes += call.request_bytes
            if entries > CALLS_PER_TURN_MAX or turn_bytes > CALLS_PER_TURN_BYTES_MAX:
                return max(1, number)
        return len(self._calls)


class Parts:
    """A call of several messages as `calls` of fewer, which together answer it."""

    def __init__(self, call: Call) -> None:
        self._call, self._entries = call, call.rpc.entries
        assert self._entries is not None, "a call without messages has no parts"
        self._parts = [
            Part(call.request, self._entries.name, messages, part_bytes)
            for messages, part_bytes in divided(call)
        ]
        self._replies: dict[int, tuple[bytes, str]] = {}
        """By part its reply, and the name of the code of its status."""
        self.calls = [
            Call(
                call.name,
                call.rpc,
                part,
                part.part_bytes,
                call.caller,
                partial(self._told, number),
                _unobserved,
            )
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
        # In a turn of its own: 1,024 entries that are wrong take as long as a part of the call.
        asyncio.get_running_loop().call_soon(self._answer_whole, replies)

    def _answer_whole(self, replies: Sequence[bytes]) -> None:
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

    def __init__(self, request: Any, name: str, messages: Sequence[Any], part_bytes: int) -> None:
        self._request, self.messages, self.part_bytes = request, messages, part_bytes
        setattr(self, name, messages)

    def __getattr__(self, name: str) -> Any:
        """Return a field of the request."""
        return getattr(self._request, name)


def divided(call: Call) -> Iterator[tuple[list[Any], int]]:
    """Yield the messages of a call in parts that a turn may take, with the bytes of each part.

    A message counts its share of what the call has beside bodies: a part of one message may have more than
    a turn may take.
    """
    assert call.rpc.entries is not None, "a call without messages has no parts"
    messages = [*getattr(call.request, call.rpc.entries.name)]
    bodies = [0] * len(messages)
    if call.request_bytes > CALLS_PER_TURN_BYTES_MAX:
        bodies = [len(getattr(message, "body", b"")) for message in messages]
    rest_bytes = max(0, call.request_bytes - sum(bodies)) // len(messages) + 1
    part, part_bytes = list[Any](), 0
    for message, body_bytes in zip(messages, bodies, strict=True):
        more_bytes = body_bytes + rest_bytes
        if part and (len(part) == CALLS_PER_TURN_MAX or part_bytes + more_bytes > CALLS_PER_TURN_BYTES_MAX):
            yield part, part_bytes
            part, part_bytes = [], 0
        part.append(message)
        part_bytes += more_bytes
    yield part, part_bytes


def is_taken_in_parts(call: Call) -> bool:
    """Return whether a call has several messages, and more than a turn may take."""
    is_large = call.request_bytes > CALLS_PER_TURN_BYTES_MAX
    return (2 if is_large else CALLS_PER_TURN_MAX + 1) <= messages_of(call) <= ENTRIES_PER_REQUEST_MAX


def messages_of(call: Call) -> int:
    """Return how many messages a call is about, 1 at least."""
    entries = call.rpc.entries
    return 1 if entries is None else max(1, len(getattr(call.request, entries.name)))


def _unobserved(*_: object) -> None:
    """Count no call: the whole one is counted."""
