"""Back-pressure: calls that append wait while too many log bytes are unflushed.

    a call --- within the quota ------------------------------> the core appends
         \\-- beyond the quota -> waits in queue --> the flush --+
                  \\-- the queue is full ------> DiskBehind

Rules:
- At most `CALLERS_UNFLUSHED_BYTES_MAX` log bytes may be unflushed. A call with more bytes is admitted only if
  no other bytes are unflushed. The count is at least `CALLERS_UNFLUSHED_RECORD_BYTES` bytes per record,
  because making a record visible takes the event loop 5 us.
- Calls are admitted in order of arrival. Otherwise, a large message could wait indefinitely.
- The messages of waiting calls use at most `CALLERS_WAITING_BYTES_MAX` bytes of memory, unless only one call
  is waiting. Calls that would exceed this limit are rejected, and the official clients resend the messages
  after a pause. A waiting call that times out is cancelled and removed from the queue.
- Acknowledgements and receives never wait, because they append only a few bytes and a delayed acknowledgement
  would cause a redelivery.

Cost: one subtraction and one comparison for a call that does not wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from commitlog import limits
from services.live.errors import DiskBehind

Turn = asyncio.Future[None]


class AppendQuota:
    """Limits the unflushed bytes of callers. `unflushed` returns the current number of unflushed bytes."""

    def __init__(self, unflushed: Callable[[], int]) -> None:
        self._unflushed = unflushed
        self._line: deque[tuple[int, Turn]] = deque()
        self._promised_bytes = 0
        self._waiting_bytes = 0

    def has_room_for(self, new_bytes: int) -> bool:
        """Return whether a call may append `new_bytes` bytes without waiting. Return True for 0 bytes."""
        return not new_bytes or (not self._line and self._fits(new_bytes))

    def has_room_for_all(self, new_bytes: int) -> bool:
        """Return whether several calls may append a total of `new_bytes` bytes without waiting."""
        return not self._line and self._left_bytes() >= new_bytes

    async def wait(self, new_bytes: int, held_bytes: int | None = None) -> None:
        """Wait until `new_bytes` bytes may be appended. The caller must append before the next `await`.

        `held_bytes` is the memory usage of the waiting call and defaults to `new_bytes`. Raise `DiskBehind`
        if the waiting calls would use too much memory.
        """
        if self.has_room_for(new_bytes):
            return
        held_bytes = limits.CALLER_WAITING_BYTES + (new_bytes if held_bytes is None else held_bytes)
        self._refuse_if_overloaded(held_bytes)
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
            # `admit_waiting` runs after the caller's append. If the caller appends nothing, no flush follows
            # that would admit the next call.
            asyncio.get_running_loop().call_soon(self.admit_waiting)

    async def wait_for_copy(self) -> None:
        """Wait until a message copy of any size may be appended.

        Raise `DiskBehind` if the waiting calls would use too much memory.
        """
        if not self.has_room_for(limits.BODY_BYTES_MAX):
            await self.wait(limits.BODY_BYTES_MAX, 0)

    def admit_waiting(self) -> None:
        """Admit waiting calls in order of arrival, up to the limit."""
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

    def _refuse_if_overloaded(self, held_bytes: int) -> None:
        if self._waiting_bytes and self._waiting_bytes + held_bytes > limits.CALLERS_WAITING_BYTES_MAX:
            raise DiskBehind(
                f"{self._unflushed()} bytes wait for it, and calls with {self._waiting_bytes} for these. "
                "Send again after a pause."
            )
