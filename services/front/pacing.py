"""How fast connections may speak on which nobody has been let in yet: strangers.

gRPC takes apart what comes before anybody can ask who says it, and a byte of headers can cost it hundreds
(HPACK's table: 16 KB of references stand for 62 MB; 8 MB of such blocks took 400 MB and kept every other call
waiting for 3 s). gRPC has no bound for that, so the bytes are bounded that reach it:

- each connection says `STRANGER_FREE_BYTES` at once: a handshake, and the first calls of any official client;
  so much comes back by `STRANGER_BYTES_PER_SECOND`, for probes of health, which are let in nowhere;
- beyond that all strangers together have a bucket of `STRANGERS_BURST_BYTES`, which is filled by
  `STRANGERS_BYTES_PER_SECOND`;
- the first call on a connection that is answered, and not as UNAUTHORIZED, ends this for it;
- who has said more than the free bytes, and is not let in after `STRANGER_MS_MAX`, is hung up on, for what
  gRPC holds of calls that never end; and an address has `STRANGERS_PER_ADDRESS_MAX` strangers at once.

Where nobody is asked who it is (no `--auth`) there are no strangers: one call would let anybody in.

Who sends megabytes as its very first call waits for the bucket. Cost: one test for each piece that comes; for
strangers, an addition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from commitlog.limits import STRANGER_FREE_BYTES, STRANGERS_BURST_BYTES, STRANGERS_BYTES_PER_SECOND

PIECE_BYTES: Final = 16 * 1024
"""What waits is passed on in pieces of this size, in turn with those of others."""


class Pace:
    """The bucket of all strangers; `now` is a monotonic clock in seconds.

    It is kept as the time at which all that was taken will be earned (the generic cell rate algorithm).
    """

    def __init__(
        self,
        now: Callable[[], float],
        free_bytes: int = STRANGER_FREE_BYTES,
        burst_bytes: int = STRANGERS_BURST_BYTES,
        bytes_per_second: int = STRANGERS_BYTES_PER_SECOND,
    ) -> None:
        self.free_bytes = free_bytes
        self.now, self._per_second = now, bytes_per_second
        self._burst_seconds = burst_bytes / bytes_per_second
        self._earned_at = now() - self._burst_seconds

    def take(self, count_bytes: int) -> float:
        """Take bytes out; returns how many seconds they must wait."""
        now = self.now()
        wait = self._earned_at - now
        self._earned_at = max(self._earned_at, now - self._burst_seconds) + count_bytes / self._per_second
        return max(0.0, wait)
