"""Back-pressure: what callers append waits for its turn while too much waits for the disk.

    a call --- there is room ---------------------------------> the core appends
         \\-- there is none ---> waits in line ---> the flush --+
                  \\-- the line is too long ---> DiskBehind

Rules:
- `CALLERS_UNFLUSHED_BYTES_MAX` of the log may be appended and not yet flushed. A larger call is let in alone.
  A record counts `CALLERS_UNFLUSHED_RECORD_BYTES` at least, since the end of a flush makes each visible,
  which takes 5 us of the loop.
- First come, first served: while anybody waits nobody else is let in, or a large message would wait for ever.
- Waiting calls hold their messages: `CALLERS_WAITING_BYTES_MAX` of them may. The next one is refused, and the
  official clients send it again after a pause. A call whose time is up is cancelled, and leaves the line.
- Acknowledgements and receives never wait here: they append little, and would have messages repeated.

Cost: a subtraction and a comparison for each call that need not wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from commitlog import limits
from services.live.errors import DiskBehind

Turn = asyncio.Future[None]


class Room:
    """The room for what callers append; `unflushed` tells how many bytes wait for the disk."""

    def __init__(self, unflushed: Callable[[], int]) -> None:
        self._unflushed = unflushed
        self._line: deque[tuple[int, Turn]] = deque()
        self._promised_bytes = 0
        self._waiting_bytes = 0

    def has(self, new_bytes: int) -> bool:
        """Return whether so much may be appended at once; nothing may in any case."""
        return not new_bytes or (not self._line and self._fits(new_bytes))

    def has_for_all(self, new_bytes: int) -> bool:
        """Return whether several calls may append so much together; what is too large for that goes alone."""
        return not self._line and self._left_bytes() >= new_bytes

    async def wait(self, new_bytes: int, held_bytes: int | None = None) -> None:
        """Return when so much may be appended, to be appended at once; raise `DiskBehind`.

        `held_bytes` is what the call holds in memory meanwhile, if that is something else.
        """
        if self.has(new_bytes):
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
            # Once the caller has appended: if it appends nothing, or is gone, no flush lets the next one in.
            asyncio.get_running_loop().call_soon(self.freed)

    async def for_copy(self) -> None:
        """Return when a call may append a copy of a message, however large that is; raise `DiskBehind`."""
        if not self.has(limits.BODY_BYTES_MAX):
            await self.wait(limits.BODY_BYTES_MAX, 0)

    def freed(self) -> None:
        """Let in those for whom there is room: less waits for the disk."""
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
