"""The part of the election that applies while a node leads: its BEATs, its looks and its stepping down.

    an answer waits for a proof of leadership   a BEAT at once (`services.live.durability`)
    an operator's order waits                   a BEAT at once for each order, with its facts
    the leader has news of itself               a BEAT at the next tick
    nothing was written for BEAT_MS             a BEAT at the next tick: a sign of life
    LOOK_SECONDS since the last look            a look at copy, disk, clock and log
    unfit, and a follower is fit                the lead is over: to that follower (`health`)
    a node complains, and no client answers     the lead is over: to that node (`reach`)

At most one BEAT and one look are in progress. This module performs no I/O; all times are in ms, from a
monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from services.cluster.election import health
from services.cluster.election import table as election_table
from services.cluster.election.inputs import NO_NEWS, Beaten, ClientsAsked, LookDone, Order, ProofWanted, Tick
from services.cluster.election.reach import ComplaintFilter
from services.cluster.election.silence import BEAT_MS
from services.cluster.election.table import Act

Say = Callable[..., None]
DutyInput = ProofWanted | Order | Beaten


class LeaderDuties:
    """The duties of the leader `name`; `put` receives acts with their arguments, `say` receives log lines."""

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
        """Whether an append after this leader's EPOCH was proven."""
        return self._proven_ms > self._began_ms

    def begin(self, epoch: int, proven_ms: int, now_ms: int) -> None:
        """Start to lead; the EPOCH was proven by an append that began at `proven_ms`."""
        self._epoch, self._began_ms, self._proven_ms = epoch, proven_ms, proven_ms
        self._orders.clear()
        self._is_beating = self._is_proof_wanted = False
        self.end_look(now_ms)

    # BEATs.

    def tick(self, given: Tick, now_ms: int) -> None:
        """Write a BEAT and start a look, if they are due."""
        self._proven_ms = max(self._proven_ms, given.proven_ms)
        self._beat_if_due(given.news, now_ms)
        self.look_if_due(now_ms, has_read_all=True)

    def handle_input(self, given: DutyInput, now_ms: int) -> None:
        """Handle a request for a proof, an order or a proven BEAT, and write the next BEAT if it is due."""
        if isinstance(given, ProofWanted):
            self._is_proof_wanted = True
        elif isinstance(given, Order):
            self._orders.append(given)
        else:
            self._is_beating, self._proven_ms = False, max(self._proven_ms, given.proven_ms)
        self._beat_if_due(given.news if isinstance(given, Beaten) else NO_NEWS, now_ms)

    def _beat_if_due(self, news: Mapping[str, Any], now_ms: int) -> None:
        is_silent = now_ms - self._proven_ms >= BEAT_MS
        if self._is_beating or not (self._orders or self._is_proof_wanted or news or is_silent):
            return
        self._is_beating, self._is_proof_wanted = True, False
        self._put(Act.BEAT, self._orders.popleft() if self._orders else Order(news))

    # Looks, also by a follower.

    def look_if_due(self, now_ms: int, *, has_read_all: bool) -> None:
        """Start a look if it is due and no other look is in progress."""
        if not self._is_looking and now_ms >= self._look_due_ms:
            self._is_looking = True
            self._look_due_ms = now_ms + int(election_table.LOOK_SECONDS * 1000)
            self._put(Act.LOOK, has_read_all)

    def end_look(self, now_ms: int | None = None) -> None:
        """Record that no look is in progress; if `now_ms` is given, restart the look interval."""
        self._is_looking = False
        if now_ms is not None:
            self._look_due_ms = now_ms + int(election_table.LOOK_SECONDS * 1000)

    def choose_successor(self, given: LookDone, now_ms: int) -> str:
        """Return the name of a fit follower if this node is unfit to lead; otherwise return "".

        If another node has complained about a fit leader, request that the leader's clients are asked.
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
        """Return whether this node steps down after a complaint, because none of its clients has answered."""
        if not given.is_reached:
            self._say("warning", "leaves: no client answers here, and another node is called", to=given.node)
            self._complaints.record_departure(now_ms)
        return not given.is_reached
