"""The duties of a leader: BEAT appends, periodic checks, and the handover.

    condition                                 action
    an answer requires a proof of leadership  append a BEAT immediately (`services.live.durability`)
    an operator command is pending            append a BEAT with the facts of the command immediately
    the leader's certificate has changed      append a BEAT at the next tick
    no append was confirmed for BEAT_MS       append a BEAT at the next tick as a heartbeat
    LOOK_SECONDS since the last check         check the copy, the disk, the clock and the log
    the leader is unfit; a follower is fit    hand over the leadership to that follower (`health`)
    a node complains; no client responds      hand over the leadership to that node (`reach`)

At most one BEAT append and one check run at a time. This module performs no I/O. All times are monotonic
clock readings in milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from services.cluster.election import health
from services.cluster.election import table as election_table
from services.cluster.election.candidacy_timer import BEAT_MS
from services.cluster.election.inputs import (
    NO_NEWS,
    ClientsAsked,
    HeartbeatDone,
    LookDone,
    Order,
    ProofWanted,
    Tick,
)
from services.cluster.election.reach import ComplaintFilter
from services.cluster.election.table import Act

Say = Callable[..., None]
DutyInput = ProofWanted | Order | HeartbeatDone


class LeaderDuties:
    """The duties of the leader `name`. `put` receives actions, and `say` receives log lines."""

    def __init__(self, name: str, put: Callable[[Act, Any], None], say: Say) -> None:
        self._name, self._put, self._say = name, put, say
        self._complaints = ComplaintFilter()
        self._handed_over_ms: int | None = None
        self._began_ms = self._proven_ms = self._epoch = 0
        self._orders: deque[Order] = deque()
        self._is_beating = self._is_proof_wanted = self._is_looking = False
        self._look_due_ms = 0

    @property
    def is_proven(self) -> bool:
        """Whether the engine has confirmed an append after this leader's EPOCH record."""
        return self._proven_ms > self._began_ms

    def begin(self, epoch: int, proven_ms: int, now_ms: int) -> None:
        """Start leading. `proven_ms` is the start time of the confirmed EPOCH append."""
        self._epoch, self._began_ms, self._proven_ms = epoch, proven_ms, proven_ms
        self._orders.clear()
        self._is_beating = self._is_proof_wanted = False
        self.end_look(now_ms)

    # BEATs.

    def tick(self, given: Tick, now_ms: int) -> None:
        """Start a BEAT append and a check if they are due."""
        self._proven_ms = max(self._proven_ms, given.proven_ms)
        self._beat_if_due(given.news, now_ms)
        self.look_if_due(now_ms, has_read_all=True)

    def handle_input(self, given: DutyInput, now_ms: int) -> None:
        """Handle a proof request, a command or a confirmed BEAT, and append a BEAT if due."""
        if isinstance(given, ProofWanted):
            self._is_proof_wanted = True
        elif isinstance(given, Order):
            self._orders.append(given)
        else:
            self._is_beating, self._proven_ms = False, max(self._proven_ms, given.proven_ms)
        self._beat_if_due(given.news if isinstance(given, HeartbeatDone) else NO_NEWS, now_ms)

    def _beat_if_due(self, news: Mapping[str, Any], now_ms: int) -> None:
        is_silent = now_ms - self._proven_ms >= BEAT_MS
        if self._is_beating or not (self._orders or self._is_proof_wanted or news or is_silent):
            return
        self._is_beating, self._is_proof_wanted = True, False
        self._put(Act.BEAT, self._orders.popleft() if self._orders else Order(news))

    # Periodic checks, which followers also perform.

    def look_if_due(self, now_ms: int, *, has_read_all: bool) -> None:
        """Start a check if due, unless one is already running."""
        if not self._is_looking and now_ms >= self._look_due_ms:
            self._is_looking = True
            self._look_due_ms = now_ms + int(election_table.LOOK_SECONDS * 1000)
            self._put(Act.LOOK, has_read_all)

    def end_look(self, now_ms: int | None = None) -> None:
        """Record that the check has ended. If `now_ms` is given, restart the interval from there."""
        self._is_looking = False
        if now_ms is not None:
            self._look_due_ms = now_ms + int(election_table.LOOK_SECONDS * 1000)

    def choose_successor(self, given: LookDone, now_ms: int) -> str:
        """Return a fit follower to hand over to if this node is unfit; otherwise, return "".

        In the latter case, probe the clients if another node has complained about the leader.
        """
        again_ms = (self._handed_over_ms or 0) + health.HAND_OVER_AGAIN_MS
        if given.unfit and given.fitter and (self._handed_over_ms is None or now_ms >= again_ms):
            self._handed_over_ms = now_ms
            self._say("warning", "hands over to a node that is fit", to=given.fitter, why=given.unfit)
            return given.fitter
        for node, complaint in given.complaints:
            is_of_now = node != self._name and complaint[0] == self._epoch
            if is_of_now and self._complaints.accept_complaint(node, complaint, now_ms):
                self._put(Act.ASK_CLIENTS, node)
                break
        return ""

    def leave_unless_reached(self, given: ClientsAsked, now_ms: int) -> bool:
        """Return whether to step down because no client responded after a complaint."""
        if not given.is_reached:
            self._say("warning", "leaves: no client answers here, and another node is called", to=given.node)
            self._complaints.record_departure(now_ms)
        return not given.is_reached
