"""The process of a node in the simulation: its election, whose actions are executed one at a time.

The election machine and its actions (`services.cluster.node_actions`) are those of the product, over a disk
and an engine in memory. The machine has a separate clock, which the world advances, so the world decides when
a node becomes a candidate. Announcements of checkpoints and the service of clients are those of the world
(`ClusterWorld._tell_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

from services.broker.spine.settings import BrokerSettings
from services.cluster.election.health import Health
from services.cluster.election.inputs import (
    ActionFailed,
    BeatRequest,
    CoreReleased,
    HeartbeatAppended,
    Input,
    LeadershipEnded,
    LeadershipGained,
    LeadershipTransferRequested,
    Tick,
)
from services.cluster.election.lag_and_skew import LagAndSkew
from services.cluster.election.machine import FAILURES, Election
from services.cluster.election.table import (
    CANDIDATE_STAGES,
    CONCURRENT_ACTIONS,
    ActionType,
    Output,
    Role,
    Stage,
)
from services.cluster.identity import Member
from services.cluster.node_actions import ACTION_METHODS, Clocks, NodeActions
from services.cluster.peers import Identity
from services.cluster.replica import Replica
from sharedlog.engine import Engine
from sharedlog.engines import Beginning
from sharedlog.errors import NotAccepted
from sharedlog.witness import LOST_MS, Witness
from tests.memory_disk import MemoryDisk

_OPEN: Final = (Stage.READING, Stage.IDLE, *CANDIDATE_STAGES, Stage.STARTING, Stage.LEADING)


class Process:
    """One process of the node `name`; `clock` is its wall clock, `draw` returns the holders of EPOCHs."""

    def __init__(
        self,
        name: str,
        began: Beginning,
        engine: Engine,
        disk: MemoryDisk,
        settings: BrokerSettings,
        clock: Callable[[], int],
        draw: Callable[[], bytes],
    ) -> None:
        self.now_ms = 0
        """The time of the election, which is monotonic."""
        me, clocks = Member(name, f"{name}:1", f"http://{name}"), Clocks(clock, lambda: self.now_ms)
        self.election = Election(me, self.now_ms, draw)
        health = Health(LagAndSkew(clock, clocks.monotonic))
        self.actions = NodeActions(me, began, engine, disk, settings, clocks, Identity, health, self._tell)
        self.actions.witness = Witness(count(0, LOST_MS).__next__)  # without its waits
        self.beat: BeatRequest | None = None
        """The BEAT in flight."""
        (self._due,) = self.election.begin()
        self._orders = count(1)

    @property
    def stage(self) -> Stage:
        """The stage of the election."""
        return self.election.stage

    @property
    def due(self) -> ActionType:
        """The next action to be executed."""
        return self._due.action

    @property
    def has_stood(self) -> bool:
        """Whether this node is a candidate: about to append its EPOCH, or not leading yet."""
        return self.election.role is Role.STANDING

    @property
    def replica(self) -> Replica | None:
        """The replica, or None if it is not open."""
        return self.actions.replica if self.stage in _OPEN else None

    @property
    def is_silent(self) -> bool:
        """Whether the time has come at which a fit node becomes a candidate without new records."""
        leadership = self.election.leadership
        return self.now_ms >= leadership.candidacy_timer.candidacy_due_ms(leadership.rank)

    def hear_nothing(self) -> None:
        """Advance the time until this node, even an unfit one, becomes a candidate without new records."""
        leadership = self.election.leadership
        candidacy_due_ms = leadership.candidacy_timer.candidacy_due_ms(leadership.rank, is_unfit=True)
        self.now_ms = max(self.now_ms, candidacy_due_ms)

    def apply_record(self, given: Input) -> None:
        """Pass an input to the election; keep its outputs."""
        for output in self.election.handle_input(given, self.now_ms):
            self._keep(output)

    def _keep(self, output: Output) -> None:
        if output.action is ActionType.APPEND_BEAT:
            self.beat = output.argument
        elif output.action is not ActionType.WRITE_LOG_LINE and output.action not in CONCURRENT_ACTIONS:
            self._due = output

    def _tell(self, given: Input, now_ms: int) -> None:
        for output in self.election.handle_input(given, now_ms):
            self._keep(output)

    def carry_out(self) -> Exception | None:
        """Execute the due action, a WAIT without delay; return its failure, or None."""
        action, argument = self._due
        if action is ActionType.WAIT:
            self.apply_record(Tick())
            return None
        self.actions.prepare_action(action)
        try:
            answer = ACTION_METHODS[action](self.actions, argument)
        except FAILURES as error:
            self.apply_record(ActionFailed(action, error, where=self.actions.unreadable(error)))
            return error
        assert answer is not None, "what does not run beside has an answer"
        self.actions.apply_result(answer)
        self.apply_record(answer)
        return None

    # Leading.

    def lead(self) -> None:
        """Lead, and serve clients from now on."""
        self.apply_record(LeadershipGained(self.now_ms))

    def beaten(self) -> None:
        """Complete the BEAT in flight, which was proven."""
        self.beat = None
        self.apply_record(HeartbeatAppended(self.now_ms))

    def step_down(self, error: NotAccepted | None = None) -> None:
        """Stop leading: after an unproven append (`error`), or for a transfer to another node."""
        assert self.election.role is Role.LEADING, "who steps down has led"
        replica = self.actions.open_replica
        assert replica.sink is not None, "a leader has a sink"
        self.apply_record(LeadershipTransferRequested("") if error is None else CoreReleased(error))
        action, to = self._due
        assert action is ActionType.HAND_OVER, "a leader that steps down hands over"
        with suppress(NotAccepted):
            replica.sink.leave(to)
        self.beat = None
        self.apply_record(LeadershipEnded())
