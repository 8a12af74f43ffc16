"""A leader that should not lead hands over to a node that may: its clock is right, and its disk has room.

    leader, unfit --GET PATH, its secret--> each node that has told of a copy
                  <--its role, why it is unfit--
    one follows, and is fit                 the leader says that it leaves, and to whom
    none                                    it leads on, and asks again in ASK_AGAIN_MS

    unfit    its clock is off (`pace`)      what comes early or late is what the leader's clock makes of it
             its disk has no room           a leader without room refuses new messages

A leader is never deposed for that: it asks before it goes. So a cluster whose engine's clock is wrong, where
all nodes are off, stays as it is. A node that is unfit and follows stands later than the others (`silence`).

Weak spots: what a leader delivers between the step of its clock and the hand-over goes by that clock. A node
that has told of no copy yet is not asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPException
from typing import Any, Final

from commitlog.disk import Disk
from services.broker.housekeeping import DISK_USED_REFUSE
from services.cluster.peers import connected_to
from services.cluster.transfer import SECRET
from sharedlog.holdings import Holding

PATH: Final = "/api/cluster/fitness"
ASK_AGAIN_MS: Final = 10_000
CLOCK_OFF: Final = "its clock is off"
NO_ROOM: Final = "its disk has no room"
SEGMENTS_FREE_MIN: Final = 2
"""Room that a node must have to be fit, in segments: it makes a reserve of one when it leads."""
_SECONDS: Final = 1.0


def has_room(disk: Disk, segment_bytes: int) -> bool:
    """Return whether a node with this disk could lead and take new messages; raise OSError."""
    free_bytes, total_bytes = disk.usage()
    return (
        free_bytes >= SEGMENTS_FREE_MIN * segment_bytes and free_bytes > (1 - DISK_USED_REFUSE) * total_bytes
    )


def fit_node(holdings: Mapping[str, Holding], besides: str) -> str:
    """Return the name of another node that follows and is fit; empty if none says so."""
    for node, held in holdings.items():
        if node != besides and held.http:
            told = told_by(held)
            if told.get("role") == "following" and told.get("unfit") == "":
                return node
    return ""


def told_by(held: Holding) -> dict[str, Any]:
    """Return what the node of a copy says of its fitness; nothing if it does not answer."""
    with (
        suppress(OSError, HTTPException, ValueError),
        closing(connected_to(held.http, held.certificate, _SECONDS)) as connection,
    ):
        connection.request("GET", PATH, headers={SECRET: held.secret})
        answer = connection.getresponse()
        if answer.status == 200:
            return dict(json.loads(answer.read(1_000)))
    return {}
