"""Determines whether a node is fit to lead, from its clock and its free disk space.

A follower's report to the leader includes the reason why the follower is unfit, if any (`followers`). An
unfit leader steps down and names a fit follower as its successor. If no follower is fit, the leader continues
to lead and repeats the check.

    reason for unfitness          consequence if the node leads
    clock off (`lag_and_skew`)    messages are delivered at wrong times
    no free disk space            new messages are refused

Other nodes never depose an unfit leader. If the engine's clock is off, all nodes appear unfit, and the leader
continues to lead. Unfit followers become candidates later than fit followers (`candidacy_timer`).

Limitation: after a clock jump, a leader delivers messages at the wrong time until it steps down.
"""

from __future__ import annotations

from typing import Final

import structlog

from commitlog.disk.disk import Disk
from services.broker.housekeeping import DISK_USED_REFUSE
from services.cluster.election.lag_and_skew import LagAndSkew

HAND_OVER_AGAIN_MS: Final = 10_000
"""Time in milliseconds before an unfit leader retries a handover."""
CLOCK_OFF: Final = "its clock is off"
NO_ROOM: Final = "its disk has no room"
SEGMENTS_FREE_MIN: Final = 2
"""Minimum free disk space of a fit node, in segments. A leader reserves disk space for one segment."""

log = structlog.get_logger()


class Health:
    """Tracks whether a node is fit to lead. The object `pace` measures the node's clock skew."""

    def __init__(self, pace: LagAndSkew) -> None:
        self.lag_and_skew = pace
        self.has_room = True
        self._is_off_told = False

    def unfit_reason(self) -> str:
        """Return the reason why this node is unfit to lead, or "" if the node is fit."""
        if self.lag_and_skew.is_clock_skewed:
            return CLOCK_OFF
        return "" if self.has_room else NO_ROOM

    def log_clock_change(self) -> None:
        """Log a message if the clock has become wrong, or correct again, since the last call."""
        if self.lag_and_skew.is_clock_skewed is self._is_off_told:
            return
        self._is_off_told = not self._is_off_told
        if self._is_off_told:
            log.error(
                "the clock is off the engine's: keep clocks together", skew_ms=self.lag_and_skew.skew_ms
            )
        else:
            log.info("the clock is right again", skew_ms=self.lag_and_skew.skew_ms)


def has_room(disk: Disk, segment_bytes: int) -> bool:
    """Return whether the disk has enough free space for new messages. Raise OSError if the disk fails."""
    free_bytes, total_bytes = disk.usage()
    return (
        free_bytes >= SEGMENTS_FREE_MIN * segment_bytes and free_bytes > (1 - DISK_USED_REFUSE) * total_bytes
    )
