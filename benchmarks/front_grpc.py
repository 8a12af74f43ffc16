"""gRPC over any HTTP/2: messages in frames, the caller in headers, an RPC of the broker's table as bytes.

What a front of our own needs of gRPC beside HTTP/2, so that every front of the comparison calls the very
handlers that grpc.aio calls. A message is framed by five bytes: whether it is compressed, and its length.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from commitlog.limits import REQUEST_BYTES_MAX
from services.rpc.caller import Caller
from services.rpc.service import NAME, Observe, Rpc, Streaming, Unary, reply_to, stream_to
from services.rpc.turns import Turns

PREFIX_BYTES: Final = 5
OK: Final = 0
CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 1, 4, 8, 12, 13
UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
DIGITS_MAX: Final = 8
HEADERS: Final = frozenset(
    (
        "x-mq-client-id",
        "x-mq-language",
        "x-mq-client-version",
        "authorization",
        "x-mq-date-time",
        "grpc-timeout",
    )
)
"""What a front keeps of a call's headers."""


class BadCall(Exception):
    """A call that cannot be read; it ends with this status of gRPC."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Frames:
    """Takes the bytes of one call's request as they come, and gives its messages."""

    def __init__(self, bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole by now; raises `BadCall`."""
        held, messages, at = self._held, [], 0
        if not held and len(data) >= PREFIX_BYTES and len(data) == PREFIX_BYTES + self._length(data, 0):
            return [data[PREFIX_BYTES:]]  # as nearly all come
        held += data
        while len(held) - at >= PREFIX_BYTES:
            end = at + PREFIX_BYTES + self._length(held, at)
            if len(held) < end:
                break
            messages.append(bytes(memoryview(held)[at + PREFIX_BYTES : end]))
            at = end
        del held[:at]
        return messages

    def _length(self, held: bytes | bytearray, at: int) -> int:
        if held[at]:
            raise BadCall(UNIMPLEMENTED, "Compressed requests are not read.")
        length = int.from_bytes(held[at + 1 : at + PREFIX_BYTES], "big")
        if length > self._bytes_max:
            raise BadCall(RESOURCE_EXHAUSTED, f"A message of {length} bytes; {self._bytes_max} at most.")
        return length


def framed(message: bytes) -> bytes:
    """A message as gRPC sends it: not compressed, its length, itself."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def seconds_of(timeout: str) -> float | None:
    """Return what a `grpc-timeout` header means: up to eight digits and a unit; None if it is none."""
    digits, unit = timeout[:-1], timeout[-1:]
    if unit not in UNITS or not digits.isdecimal() or len(digits) > DIGITS_MAX:
        return None
    return int(digits) * UNITS[unit]


def caller_of(headers: Mapping[str, str], host: str) -> Caller:
    """Return who calls; the same as `services.rpc.server.caller_of` of a call by grpc.aio."""
    said = headers.get
    timeout = said("grpc-timeout")
    return Caller(
        client_id=said("x-mq-client-id", ""),
        language=said("x-mq-language", ""),
        version=said("x-mq-client-version", ""),
        host=host,
        seconds_left=None if timeout is None else seconds_of(timeout),
        authorization=said("authorization", ""),
        date=said("x-mq-date-time", ""),
    )


class Route(NamedTuple):
    """One RPC of the table under its path."""

    name: str
    rpc: Rpc
    turns: Turns
    observe: Observe

    @property
    def is_unary(self) -> bool:
        """Whether there is one reply to one request."""
        return not isinstance(self.rpc, Streaming)

    @property
    def is_both_ways(self) -> bool:
        """Whether the request is a stream."""
        return isinstance(self.rpc, Streaming) and self.rpc.both_ways

    async def answer(self, message: bytes, caller: Caller) -> bytes:
        """Return the framed reply to a request (of a unary RPC)."""
        rpc: Any = self.rpc
        request = parsed(rpc, message)
        answer = reply_to if isinstance(rpc, Unary) else self.turns.reply
        reply = await answer(self.name, rpc, request, caller, self.observe)
        return framed(reply.SerializeToString())

    async def answers(
        self, message: bytes | AsyncIterator[bytes], caller: Caller
    ) -> AsyncGenerator[bytes, None]:
        """Yield the framed replies to a request, or to a stream of them (of a streaming RPC)."""
        rpc: Any = self.rpc
        request = parsed(rpc, message) if isinstance(message, bytes) else all_parsed(rpc, message)
        async with aclosing(stream_to(self.name, rpc, request, caller, self.observe)) as replies:
            async for reply in replies:
                yield framed(reply.SerializeToString())


def routes_of(rpcs: Mapping[str, Rpc], turns: Turns, observe: Observe) -> dict[str, Route]:
    """Return the table by path; an RPC of another service is named in full."""
    paths = {name: f"/{name}" if "/" in name else f"/{NAME}/{name}" for name in rpcs}
    return {paths[name]: Route(name, rpc, turns, observe) for name, rpc in rpcs.items()}


def parsed(rpc: Rpc, message: bytes) -> Any:
    """Return a request; raises `BadCall`."""
    try:
        return rpc.request.FromString(message)
    except DecodeError as error:
        raise BadCall(INTERNAL, "The request is no message of this RPC.") from error


async def all_parsed(rpc: Rpc, messages: AsyncIterator[bytes]) -> AsyncGenerator[Any, None]:
    """Yield the requests of a stream."""
    async for message in messages:
        yield parsed(rpc, message)
