"""Whether a node should lead: its clock is right, and its disk has room.

    each follower --why it is unfit, or that it is not--> leader (`followers`)
    the leader is unfit, and a follower is fit    it says that it leaves, and to whom
    the leader is unfit, and none is fit          it leads on, and looks again

    unfit    its clock is off (`pace`)       what comes early or late is what the leader's clock makes of it
             its disk has no room           a leader without room refuses new messages

A leader is never deposed for that: it knows of another before it goes. So a cluster whose engine's clock is
wrong, where all nodes are off, stays as it is. A node that is unfit and follows stands later than the others
(`silence`).

Weak spot: what a leader delivers between the step of its clock and the hand-over goes by that clock.
"""

from __future__ import annotations

from typing import Final

import structlog

from commitlog.disk import Disk
from services.broker.housekeeping import DISK_USED_REFUSE
from services.cluster.election.pace import Pace

HAND_OVER_AGAIN_MS: Final = 10_000
"""How long a leader that is unfit waits from one hand-over to the next: it may have come to nothing."""
CLOCK_OFF: Final = "its clock is off"
NO_ROOM: Final = "its disk has no room"
SEGMENTS_FREE_MIN: Final = 2
"""Room that a node must have to be fit, in segments: it makes a reserve of one when it leads."""

log = structlog.get_logger()


class Health:
    """The clock of a node, compared with the engine's (`pace`), and the room on its disk."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.has_room = True
        self._is_off_told = False

    def unfit(self) -> str:
        """Return why this node should lead only where no other can; empty if it may."""
        if self.pace.is_off:
            return CLOCK_OFF
        return "" if self.has_room else NO_ROOM

    def tell_clock(self) -> None:
        """Log when this node's clock begins or ends to be off."""
        if self.pace.is_off is self._is_off_told:
            return
        self._is_off_told = not self._is_off_told
        if self._is_off_told:
            log.error("the clock is off the engine's: keep clocks together", skew_ms=self.pace.skew_ms)
        else:
            log.info("the clock is right again", skew_ms=self.pace.skew_ms)


def has_room(disk: Disk, segment_bytes: int) -> bool:
    """Return whether a node with this disk could lead and take new messages; raise OSError."""
    free_bytes, total_bytes = disk.usage()
    return (
        free_bytes >= SEGMENTS_FREE_MIN * segment_bytes and free_bytes > (1 - DISK_USED_REFUSE) * total_bytes
    )
