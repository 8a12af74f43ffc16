"""The duties of a leader: BEAT appends, periodic health checks, and the handover.

    condition                                 action
    an answer requires a proof of leadership  append a BEAT record at once (`services.live.durability`)
    an operator command is pending            append a BEAT record with the command at once
    the leader's certificate has changed      append a BEAT record at the next tick
    no append confirmed for HEARTBEAT_MS      append a BEAT record at the next tick
    HEALTH_CHECK_SECONDS since the last check check the store, the disk, the clock and the log
    the leader is unfit; a follower is fit    hand over the leadership to that follower (`health`)
    a node complains; no client responds      hand over the leadership to that node (`reach`)

At most one BEAT append and one health check run at the same time. This module performs no I/O. All times are
monotonic clock readings in milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from services.cluster.election import health
from services.cluster.election import table as election_table
from services.cluster.election.candidacy_timer import HEARTBEAT_MS
from services.cluster.election.inputs import (
    NO_FACTS,
    BeatRequest,
    ClientProbeCompleted,
    HealthCheckCompleted,
    HeartbeatAppended,
    ProofRequested,
    Tick,
)
from services.cluster.election.reach import ComplaintFilter
from services.cluster.election.table import ActionType

WriteLogLine = Callable[..., None]
LeaderInput = ProofRequested | BeatRequest | HeartbeatAppended


class LeaderDuties:
    """The duties of the leader `name`.

    The callback `put` receives actions, and the callback `say` receives log lines.
    """

    def __init__(self, name: str, put: Callable[[ActionType, Any], None], say: WriteLogLine) -> None:
        self._name, self._add_action, self._write_log_line = name, put, say
        self._complaints = ComplaintFilter()
        self._handed_over_ms: int | None = None
        self._began_ms = self._proven_ms = self._epoch = 0
        self._beat_requests: deque[BeatRequest] = deque()
        self._is_beat_pending = self._is_proof_requested = self._is_checking_health = False
        self._health_check_due_ms = 0

    @property
    def is_proven(self) -> bool:
        """Whether the engine has confirmed an append after the EPOCH record of this leader."""
        return self._proven_ms > self._began_ms

    def begin(self, epoch: int, proven_ms: int, now_ms: int) -> None:
        """Start to lead. The argument `proven_ms` is the start time of the confirmed EPOCH append."""
        self._epoch, self._began_ms, self._proven_ms = epoch, proven_ms, proven_ms
        self._beat_requests.clear()
        self._is_beat_pending = self._is_proof_requested = False
        self.record_health_check_end(now_ms)

    # BEATs.

    def tick(self, given: Tick, now_ms: int) -> None:
        """Start a BEAT append and a health check, if due."""
        self._proven_ms = max(self._proven_ms, given.proven_ms)
        self._append_beat_if_due(given.changed_facts, now_ms)
        self.start_health_check_if_due(now_ms, has_read_all=True)

    def handle_input(self, given: LeaderInput, now_ms: int) -> None:
        """Handle a proof request, a command, or a confirmed BEAT append, and append a BEAT record if due."""
        if isinstance(given, ProofRequested):
            self._is_proof_requested = True
        elif isinstance(given, BeatRequest):
            self._beat_requests.append(given)
        else:
            self._is_beat_pending, self._proven_ms = False, max(self._proven_ms, given.proven_ms)
        self._append_beat_if_due(
            given.changed_facts if isinstance(given, HeartbeatAppended) else NO_FACTS, now_ms
        )

    def _append_beat_if_due(self, changed_facts: Mapping[str, Any], now_ms: int) -> None:
        is_silent = now_ms - self._proven_ms >= HEARTBEAT_MS
        if self._is_beat_pending or not (
            self._beat_requests or self._is_proof_requested or changed_facts or is_silent
        ):
            return
        self._is_beat_pending, self._is_proof_requested = True, False
        self._add_action(
            ActionType.APPEND_BEAT,
            self._beat_requests.popleft() if self._beat_requests else BeatRequest(changed_facts),
        )

    # Periodic checks, which followers also perform.

    def start_health_check_if_due(self, now_ms: int, *, has_read_all: bool) -> None:
        """Start a health check if a check is due and none is running."""
        if not self._is_checking_health and now_ms >= self._health_check_due_ms:
            self._is_checking_health = True
            self._health_check_due_ms = now_ms + int(election_table.HEALTH_CHECK_SECONDS * 1000)
            self._add_action(ActionType.CHECK_HEALTH, has_read_all)

    def record_health_check_end(self, now_ms: int | None = None) -> None:
        """Record the end of a health check. If `now_ms` is given, restart the check interval at that time."""
        self._is_checking_health = False
        if now_ms is not None:
            self._health_check_due_ms = now_ms + int(election_table.HEALTH_CHECK_SECONDS * 1000)

    def choose_successor(self, given: HealthCheckCompleted, now_ms: int) -> str:
        """Return a fit follower as the successor if this node is unfit. Otherwise, return "".

        In the latter case, probe the clients if another node has complained about the leader.
        """
        again_ms = (self._handed_over_ms or 0) + health.HAND_OVER_AGAIN_MS
        if given.unfit and given.fitter and (self._handed_over_ms is None or now_ms >= again_ms):
            self._handed_over_ms = now_ms
            self._write_log_line(
                "warning", "hands over to a node that is fit", to=given.fitter, why=given.unfit
            )
            return given.fitter
        for node, complaint in given.complaints:
            is_of_now = node != self._name and complaint[0] == self._epoch
            if is_of_now and self._complaints.accept_complaint(node, complaint, now_ms):
                self._add_action(ActionType.PROBE_CLIENTS, node)
                break
        return ""

    def resign_unless_reached(self, given: ClientProbeCompleted, now_ms: int) -> bool:
        """Return whether the leader must step down because no client responded after a complaint."""
        if not given.is_reached:
            self._write_log_line(
                "warning", "leaves: no client answers here, and another node is called", to=given.node
            )
            self._complaints.record_departure(now_ms)
        return not given.is_reached
