"""Back-pressure makes the appends of callers wait while too many bytes wait for the disk.

    a call --- there is room ---------------------------------> the core appends
         \\-- there is none ---> waits in line ---> the flush --+
                  \\-- the line is full -------> DiskBehind

Rules:
- At most `CALLERS_UNFLUSHED_BYTES_MAX` bytes of the log may be unflushed at a time. A larger call is admitted
  alone. A record counts as at least `CALLERS_UNFLUSHED_RECORD_BYTES`, because the end of a flush makes each
  record visible, which takes 5 us of the loop.
- Calls are served in order of arrival. No call passes a waiting call, because a large message could otherwise
  wait forever.
- Waiting calls hold at most `CALLERS_WAITING_BYTES_MAX` of messages in memory. Beyond this limit a call is
  refused, and the official clients send the message again after a pause. A call that times out is cancelled
  and removed from the line.
- Acknowledgements and receives never wait for room, because they append few bytes and a delay would repeat
  messages.

Cost: a subtraction and a comparison for each call that does not wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from commitlog import limits
from services.live.errors import DiskBehind

Turn = asyncio.Future[None]


class Room:
    """The room for appends of callers. `unflushed` returns the number of bytes that wait for the disk."""

    def __init__(self, unflushed: Callable[[], int]) -> None:
        self._unflushed = unflushed
        self._line: deque[tuple[int, Turn]] = deque()
        self._promised_bytes = 0
        self._waiting_bytes = 0

    def has_room_for(self, new_bytes: int) -> bool:
        """Return whether `new_bytes` may be appended at once, which is always true for 0 bytes."""
        return not new_bytes or (not self._line and self._fits(new_bytes))

    def has_room_for_all(self, new_bytes: int) -> bool:
        """Return whether several calls may append `new_bytes` together. Larger calls must append alone."""
        return not self._line and self._left_bytes() >= new_bytes

    async def wait(self, new_bytes: int, held_bytes: int | None = None) -> None:
        """Return when `new_bytes` may be appended. The caller must then append at once.

        `held_bytes` is the memory that the call holds meanwhile, if it differs from `new_bytes`. Raise
        `DiskBehind` if too many bytes of messages wait.
        """
        if self.has_room_for(new_bytes):
            return
        held_bytes = limits.CALLER_WAITING_BYTES + (new_bytes if held_bytes is None else held_bytes)
        self._refuse_if_long(held_bytes)
        turn: Turn = asyncio.get_running_loop().create_future()
        self._line.append((new_bytes, turn))
        self._waiting_bytes += held_bytes
        try:
            await turn
        finally:
            self._waiting_bytes -= held_bytes
            if not turn.cancelled():
                self._promised_bytes -= new_bytes
            assert self._waiting_bytes >= 0, "more calls left the line than waited"
            assert self._promised_bytes >= 0, "more bytes were taken than promised"
            # Run after the caller's append. If the caller appends nothing or is gone, no flush admits the
            # next call.
            asyncio.get_running_loop().call_soon(self.admit_waiting)

    async def wait_for_copy(self) -> None:
        """Return when a call may append a copy of a message of any size, or raise `DiskBehind`."""
        if not self.has_room_for(limits.BODY_BYTES_MAX):
            await self.wait(limits.BODY_BYTES_MAX, 0)

    def admit_waiting(self) -> None:
        """Admit the waiting calls that fit, after bytes were flushed."""
        while self._line:
            new_bytes, turn = self._line[0]
            if not turn.cancelled() and not self._fits(new_bytes):
                return
            self._line.popleft()
            if not turn.cancelled():
                self._promised_bytes += new_bytes
                turn.set_result(None)

    def _fits(self, new_bytes: int) -> bool:
        left_bytes = self._left_bytes()
        return left_bytes == limits.CALLERS_UNFLUSHED_BYTES_MAX or new_bytes <= left_bytes

    def _left_bytes(self) -> int:
        return limits.CALLERS_UNFLUSHED_BYTES_MAX - self._unflushed() - self._promised_bytes

    def _refuse_if_long(self, held_bytes: int) -> None:
        if self._waiting_bytes and self._waiting_bytes + held_bytes > limits.CALLERS_WAITING_BYTES_MAX:
            raise DiskBehind(
                f"{self._unflushed()} bytes wait for it, and calls with {self._waiting_bytes} for these. "
                "Send again after a pause."
            )
