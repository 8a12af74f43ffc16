"""The fitness of a node to lead, which depends on its clock and its free disk space.

Each follower reports to the leader whether it is fit and, if not, the reason (`followers`). If the leader is
unfit and a follower is fit, the leader steps down and names the fit follower as its successor. If no follower
is fit, the leader continues to lead and repeats the check.

    reason for being unfit    consequence if the node leads
    clock off (`pace`)        messages are delivered at wrong times
    no free disk space        new messages are refused

Other nodes never depose an unfit leader. An unfit leader hands over its leadership only to a follower that
has reported itself as fit. If the engine's clock is wrong, all nodes appear unfit, and the leader continues
to lead. Unfit followers become candidates later than fit followers (`candidacy_timer`).

Weak spot: after a clock jump, a leader delivers messages at the wrong times until it hands over the
leadership.
"""

from __future__ import annotations

from typing import Final

import structlog

from commitlog.disk import Disk
from services.broker.housekeeping import DISK_USED_REFUSE
from services.cluster.election.pace import LagAndSkew

HAND_OVER_AGAIN_MS: Final = 10_000
"""The time, in ms, after which an unfit leader retries a handover that may have failed."""
CLOCK_OFF: Final = "its clock is off"
NO_ROOM: Final = "its disk has no room"
SEGMENTS_FREE_MIN: Final = 2
"""The minimum free disk space of a fit node, in segments. A leader reserves one of these segments."""

log = structlog.get_logger()


class Health:
    """The fitness of a node to lead, based on its clock skew (`pace`) and its free disk space."""

    def __init__(self, pace: LagAndSkew) -> None:
        self.pace = pace
        self.has_room = True
        self._is_off_told = False

    def unfit_reason(self) -> str:
        """Return the reason why this node is unfit to lead, or "" if this node is fit."""
        if self.pace.is_off:
            return CLOCK_OFF
        return "" if self.has_room else NO_ROOM

    def log_clock_change(self) -> None:
        """Log a message if this node's clock has become wrong or has been corrected since the last call."""
        if self.pace.is_off is self._is_off_told:
            return
        self._is_off_told = not self._is_off_told
        if self._is_off_told:
            log.error("the clock is off the engine's: keep clocks together", skew_ms=self.pace.skew_ms)
        else:
            log.info("the clock is right again", skew_ms=self.pace.skew_ms)


def has_room(disk: Disk, segment_bytes: int) -> bool:
    """Return whether the disk has enough free space for new messages. Raise OSError if the disk fails."""
    free_bytes, total_bytes = disk.usage()
    return (
        free_bytes >= SEGMENTS_FREE_MIN * segment_bytes and free_bytes > (1 - DISK_USED_REFUSE) * total_bytes
    )
