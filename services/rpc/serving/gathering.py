"""Limits on the calls that are executed in one event loop iteration. A large call is divided into parts.

    calls of an iteration --> Gathering --+-- up to CALLS_PER_TURN_MAX messages and
                                          |   CALLS_PER_TURN_BYTES_MAX bytes --------> Turns.take
                                          +-- the others: in the next iteration
    a larger call --> Parts --> one call per part, in successive iterations
                        +--> one reply, after the replies of all parts

The entries of the complete reply are those of its parts, in order. A part that is refused as a whole has no
entries, so each of its messages gets an entry with the status of the part. If all parts are refused in this
way, the first reply is used. A call with more than `ENTRIES_PER_REQUEST_MAX` messages is refused as a whole.

Replies that are all OK are concatenated, because protobuf parses two concatenated messages as one message
with the entries of both.

Cost: one addition for a call with one message. The bodies of a call that exceeds the byte limit are read once
more to determine their lengths. If a reply is not OK, the replies are parsed and encoded once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from commitlog.limits import CALLS_PER_TURN_BYTES_MAX, CALLS_PER_TURN_MAX, ENTRIES_PER_REQUEST_MAX
from services.rpc.generated.definition_pb2 import Code
from services.rpc.serving.turns import Call, CallScheduler
from services.rpc.wire.statuses import overall

OK: Final = Code.Name(Code.OK)


class CallGatherer:
    """The calls that arrived in this event loop iteration, which `turns` executes together.

    Calls beyond `CALLS_PER_TURN_MAX` messages or `CALLS_PER_TURN_BYTES_MAX` wait for the next iteration, so
    that timers and durable answers are processed in between. A call with several messages counts as that many
    messages. A call that exceeds the limits is executed in parts (`SplitReplies`), one per iteration.
    """

    def __init__(self, turns: CallScheduler) -> None:
        self._turns, self._loop = turns, asyncio.get_running_loop()
        self._calls: list[Call] = []
        self._is_scheduled = False

    def add(self, call: Call) -> None:
        """Add a call to the current iteration."""
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
        if count == 1 and is_split(calls[0]):
            self._calls = SplitReplies(calls[0]).calls + self._calls
            calls = [self._calls.pop(0)]
        self._turns.take(calls)
        if self._calls:  # scheduled last, so that a part that waits for room does so before the next part
            self._schedule()

    def _count_of_turn(self) -> int:
        """Return the number of calls to execute in this iteration, at least 1."""
        entries = turn_bytes = 0
        for number, call in enumerate(self._calls):
            entries += messages_of(call)
            turn_bytes += call.request_bytes
            if entries > CALLS_PER_TURN_MAX or turn_bytes > CALLS_PER_TURN_BYTES_MAX:
                return max(1, number)
        return len(self._calls)


class SplitReplies:
    """A call divided into smaller calls, whose replies are combined."""

    def __init__(self, call: Call) -> None:
        self._call, self._entries = call, call.rpc.entries
        assert self._entries is not None, "a call without messages has no parts"
        self._parts = [
            CallPart(call.request, self._entries.name, messages, part_bytes)
            for messages, part_bytes in split_call(call)
        ]
        self._replies: dict[int, tuple[bytes, str]] = {}
        """The reply of each part and the name of its status code."""
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
        """Store the reply to a part. After the last part, answer the call."""
        self._replies[number] = reply, code
        if len(self._replies) < len(self._parts):
            return
        replies, codes = zip(*(self._replies[one] for one in range(len(self._parts))), strict=True)
        if set(codes) == {OK}:
            self._call.answer(b"".join(replies))
            return
        # In a separate iteration, because 1,024 refused entries take as long as a part of the call.
        asyncio.get_running_loop().call_soon(self._answer_whole, replies)

    def _answer_whole(self, replies: Sequence[bytes]) -> None:
        whole = self._whole([self._call.rpc.reply.FromString(one) for one in replies])
        self._call.code = Code.Name(whole.status.code)
        self._call.answer(whole.SerializeToString())

    def _whole(self, replies: Sequence[Any]) -> Any:
        """Return the combined reply of all parts."""
        if not any(reply.entries for reply in replies):
            return replies[0]
        assert self._entries is not None, "a call without messages has no parts"
        whole = self._call.rpc.reply(status=overall([reply.status for reply in replies]))
        for part, reply in zip(self._parts, replies, strict=True):
            refused = (self._entries.refused(one, reply.status) for one in part.messages)
            whole.entries.extend(reply.entries or refused)
        return whole


class CallPart:
    """A request with some of the messages. All other fields are those of the original request."""

    def __init__(self, request: Any, name: str, messages: Sequence[Any], part_bytes: int) -> None:
        self._request, self.messages, self.part_bytes = request, messages, part_bytes
        setattr(self, name, messages)

    def __getattr__(self, name: str) -> Any:
        """Return a field of the original request."""
        return getattr(self._request, name)


def split_call(call: Call) -> Iterator[tuple[list[Any], int]]:
    """Yield the messages of a call in parts within the limits, with the size of each part in bytes.

    Bytes outside bodies are distributed over the messages. A part with a single message may exceed the limit.
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


def is_split(call: Call) -> bool:
    """Return whether a call has several messages and exceeds the limits."""
    is_large = call.request_bytes > CALLS_PER_TURN_BYTES_MAX
    return (2 if is_large else CALLS_PER_TURN_MAX + 1) <= messages_of(call) <= ENTRIES_PER_REQUEST_MAX


def messages_of(call: Call) -> int:
    """Return the number of messages of a call, at least 1."""
    entries = call.rpc.entries
    return 1 if entries is None else max(1, len(getattr(call.request, entries.name)))


def _unobserved(*_: object) -> None:
    """Ignore a part, because only the complete call is counted."""
