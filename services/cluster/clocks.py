"""A leader whose clock is off hands over to a node whose clock is not.

    leader, off --GET PATH, its secret--> each node that has told of a copy
                <--role, whether its clock is off--
    one follows, and is not off           the leader says that it leaves, and to whom
    none                                  it leads on, and is asked for again in ASK_AGAIN_MS

What comes early or late is what the leader's clock makes of it. A leader is never deposed for its clock: it
asks before it goes, so a cluster whose engine's clock is wrong, where all nodes are off, stays as it is. A
node that is off and follows stands later than the others (`silence`).

Weak spot: what a leader delivers between the step of its clock and the hand-over goes by that clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPException
from typing import Any, Final

from services.cluster.peers import connection_to
from services.cluster.transfer import SECRET
from sharedlog.holdings import Holding

PATH: Final = "/api/cluster/clock"
ASK_AGAIN_MS: Final = 10_000
_SECONDS: Final = 1.0


def node_with_a_good_clock(holdings: Mapping[str, Holding], besides: str) -> str:
    """Return the name of another node that follows by a good clock; empty if none says so."""
    for node, held in holdings.items():
        if node != besides and held.http:
            told = told_by(held.http, held.secret)
            if told.get("role") == "following" and told.get("clock_is_off") is False:
                return node
    return ""


def told_by(url: str, secret: str) -> dict[str, Any]:
    """Return what a node says of its clock; nothing if it does not answer."""
    with suppress(OSError, HTTPException, ValueError), closing(connection_to(url, _SECONDS)) as connection:
        connection.request("GET", PATH, headers={SECRET: secret})
        answer = connection.getresponse()
        if answer.status == 200:
            return dict(json.loads(answer.read(1_000)))
    return {}
