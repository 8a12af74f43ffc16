"""The election state machine, which determines the next action of a node.

    stage          action                        done                      else
    OPENING        open the replica              READING                   REOPENING, or COPYING
    READING        verify old records, read new  READING while new records IDLE if the engine is unresponsive
                   leader silent                 CATCHING_UP               IDLE, then READING
    CATCHING_UP    read to the end               APPENDING                 IDLE
    APPENDING      append an EPOCH record        CONFIRMING                IDLE
    CONFIRMING     read the record back          STARTING                  IDLE
    STARTING       serve clients                 LEADING                   REOPENING
    LEADING        BEATs (`leader_duties`)       HANDING_OVER
    HANDING_OVER   stop, name a successor        OPENING                   COPYING, or HALTED
    COPYING        fetch a copy                  OPENING                   COPY_PAUSED, then OPENING
    HALTED         none until the process ends

The transition table (`services.cluster.election.table`) maps a stage and an event to the next stage and its
action. An input (`services.cluster.election.inputs`) is an action result, a shared log record, a tick, or a
command. This module translates inputs into events and returns the actions to perform, including log output.
The actions are performed by the node (`services.cluster.node`) or by the simulation. The state machine never
accesses clocks, files, or the network.

Rules
1. Each stage performs exactly one action or a WAIT. A result that arrives after the stage has changed is
   discarded. An early tick only starts the next action early. Health checks, complaints, BEAT appends, and
   client probes run concurrently with the action of the stage.
2. The shared log alone determines the leader. A node enters LEADING only after it has read back its own EPOCH
   record and found no newer one. A node leaves LEADING if an append is not confirmed. A node that stops
   leading discards its core (OPENING), because the core may contain records that were not accepted.
3. If the engine does not respond, the node retries indefinitely. If the shared log is inconsistent, the node
   stops reading the log (HALTED). If a record is damaged, the node fetches a copy that extends past that
   record (COPYING).
4. A waiting node exits immediately when a shutdown is requested. If an action is running, the node exits at
   the next transition, unless the node may have the right to lead. A leader first hands over the leadership,
   even if its disk has failed.
5. An unfit node (`health`) becomes a candidate later than other nodes. A follower appends a complaint if the
   leader does not respond to forwarded calls (`reach`).

Cost: one table lookup and a few comparisons per input. Limitation: the table shows only the effects of
events. The conditions that cause events are defined in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from commitlog.errors import StoreDamaged, StoreError
from services.cluster.election import inputs
from services.cluster.election import table as election_table
from services.cluster.election.inputs import FAILURE_STAGES, INPUT_STAGES, Input
from services.cluster.election.leader_duties import LeaderDuties
from services.cluster.election.leadership import Leadership
from services.cluster.election.log_answers import LogAnswers
from services.cluster.election.reach import LeaderReachability
from services.cluster.election.table import (
    CANDIDATE_STAGES,
    LEADERSHIP_STAGES,
    STAGE_ROLES,
    TRANSITIONS,
    WAIT_SECONDS,
    ActionType,
    Event,
    LogLine,
    Output,
    Role,
    Stage,
    Transition,
    Wait,
)
from services.cluster.errors import CopyRefused, DuplicateNodeName, KeyMismatch
from services.cluster.identity import Member
from sharedlog.errors import EngineRefused, EngineUnavailable, Halted, LogDamaged, LogTrimmed, NoCluster
from sharedlog.holdings import Unreadable

FAILURES: Final = (
    *(
        EngineUnavailable,
        EngineRefused,
        LogTrimmed,
        Halted,
        StoreError,
        OSError,
        CopyRefused,
        KeyMismatch,
        DuplicateNodeName,
    ),
)
"""The action errors that the state machine handles (`ActionFailed`). All other errors are internal errors."""
_HALTING: Final = (Halted, NoCluster, KeyMismatch, DuplicateNodeName)
_END: Final = Transition(Stage.LEFT, ActionType.END_PROCESS)


class Election:
    """The election state machine of the node `me`.

    All times are readings of the same monotonic clock, in milliseconds. The function `draw` returns a new
    random holder for each EPOCH record.
    """

    def __init__(self, me: Member, now_ms: int, draw: Callable[[], bytes]) -> None:
        self.me, self._generate_holder = me, draw
        self.stage, self.role = Stage.OPENING, Role.OPENING
        self.leadership, self.reachability = Leadership(me, now_ms), LeaderReachability()
        self.duties = LeaderDuties(me.node, self._add_action, self._add_log_line)
        self.answers = LogAnswers(self._add_log_line)
        self.halted = self._recovery_advice = ""
        """The reason why this node has halted, or "" if the node has not halted."""
        self.copying = ""
        """The reason why this node needs a copy, or "" if the node needs no copy."""
        self.reopened = ""
        """The reason why the node has reopened the replica.

        The reason is reset to "" when the whole log has been read.
        """
        self.takeovers, self.is_shutting_down = 0, False
        self._must_check = True
        """Whether the next read must verify that the log still contains the records that were read before."""
        self._candidacy_reason, self._epoch_until_ms = "", 0
        self._candidacy: Any = None
        self._is_core_released = False
        """Whether the leader's core was released, which can happen even before the node serves clients."""
        self._failure: Exception | None = None
        """The failure that a health check or a read has found, or None. The failure ends the current role."""
        self._unreadable_record: Unreadable | None = None
        """The unreadable record that caused the last failure, or None."""
        self._copied_ms: int | None = None
        self._outputs: list[Output] = []

    def begin(self) -> list[Output]:
        """Return the first action of a node, which opens the replica."""
        return [Output(ActionType.OPEN_REPLICA)]

    def handle_input(self, given: Input, now_ms: int) -> list[Output]:
        """Apply an input, and return the resulting actions in the order of execution."""
        kind = type(given)
        if self.stage is Stage.LEFT or (self.stage is Stage.HALTED and kind is not inputs.ShutdownRequested):
            return []
        if self.stage in INPUT_STAGES.get(kind, Stage):
            _HANDLERS[kind](self, given, now_ms)
        outputs, self._outputs = self._outputs, []
        return outputs

    def _apply_event(self, event: Event, argument: Any = None) -> None:
        """Apply the row of the transition table for an event. Ignore events without a row."""
        row = TRANSITIONS.get((self.stage, event))
        if row is None:
            return
        if self.is_shutting_down and not {self.stage, row.stage} <= LEADERSHIP_STAGES:
            row, argument = _END, None
        self.stage = row.stage
        self.role = STAGE_ROLES.get(row.stage, self.role)
        if row.wait is not None:
            argument = WAIT_SECONDS[row.wait]
        elif row.action is ActionType.READ_LOG:
            argument = self._must_check
        self._add_action(row.action, argument)

    def _add_action(self, action: ActionType, argument: Any) -> None:
        self._outputs.append(Output(action, argument))

    def _add_log_line(self, level: str, event: str, **facts: Any) -> None:
        self._add_action(ActionType.WRITE_LOG_LINE, LogLine(level, event, facts))

    # Following.

    def _on_replica_opened(self, given: inputs.ReplicaOpened, now_ms: int) -> None:
        self.leadership.record_epoch(given.epoch, given.leads)
        self.leadership.has_read_all, self._must_check = False, True
        self.leadership.candidacy_timer.restart(now_ms)
        self.copying, self._failure, self._unreadable_record, self.answers.seen = "", None, None, given.seen
        self.duties.record_health_check_end()
        self._apply_event(Event.REPLICA_OPENED)

    def _on_record_applied(self, given: inputs.RecordApplied, now_ms: int) -> None:
        if self.leadership.apply_step(given.step, now_ms):
            self.answers.unconfirmed_candidacy = ""
            self._add_log_line(
                "info", "epoch", epoch=self.leadership.epoch, leader=self.leadership.facts["node"]
            )

    def _on_read_completed(self, given: inputs.ReadCompleted, now_ms: int) -> None:
        self.answers.record_progress(given.seen)
        if self.stage is Stage.READING:
            self._must_check = False
            self.answers.record_response(now_ms)
            self._continue_following(given, now_ms)
        elif given.records or not given.is_founded:
            self._apply_event(Event.MORE_RECORDS if given.records else Event.ELECTION_LOST)
        else:
            holder = self._generate_holder()
            self.leadership.duplicate_name.record_own_holder(holder)
            self._apply_event(Event.LOG_END_REACHED, holder)

    def _continue_following(self, given: inputs.ReadCompleted, now_ms: int) -> None:
        """Start a health check and append a complaint, if due. Then read, wait, or become a candidate."""
        leadership = self.leadership
        try:
            leadership.check(is_newest=not given.records)
        except (DuplicateNodeName, KeyMismatch) as error:
            self._failure = error
        if self._failure is not None:
            self._handle_failure(self._failure, now_ms)
            return
        self.duties.start_health_check_if_due(now_ms, has_read_all=leadership.has_read_all)
        # Before the node has read the whole log, its entry in the holdings may describe a discarded copy.
        if given.is_listed and leadership.has_read_all:
            self._complain_if_due(now_ms)
        if not given.records:
            leadership.has_read_all, self.reopened = True, ""
        if given.records:
            self._apply_event(Event.MORE_RECORDS)
        elif now_ms >= leadership.candidacy_timer.candidacy_due_ms(
            leadership.rank, is_unfit=bool(given.unfit)
        ):
            self._candidacy_reason = leadership.candidacy_reason
            leadership.candidacy_timer.record_candidacy(now_ms)
            self._apply_event(Event.LEADER_SILENT)
        else:
            self._apply_event(Event.CAUGHT_UP)

    def _complain_if_due(self, now_ms: int) -> None:
        """Append a complaint to the shared log if the leader does not respond to forwarded calls."""
        epoch = self.leadership.epoch
        if (number := self.reachability.next_complaint(epoch, now_ms)) is not None:
            self._add_log_line("warning", "the leader does not answer what clients ask", epoch=epoch)
            self._add_action(ActionType.APPEND_COMPLAINT, (epoch, number))

    # Candidacy.

    def _on_epoch_appended(self, given: inputs.EpochAppended, now_ms: int) -> None:
        self._epoch_until_ms = now_ms + int(election_table.EPOCH_CONFIRMATION_SECONDS * 1000)
        self._candidacy = given.candidacy
        self._apply_event(
            Event.ELECTION_LOST if given.candidacy is None else Event.EPOCH_APPENDED, given.candidacy
        )

    def _on_epoch_confirmed(self, given: inputs.EpochConfirmed, now_ms: int) -> None:
        if given.has_won:
            self.answers.unconfirmed_candidacy = ""
            self.takeovers += 1
            self._is_core_released, self._failure = False, None
            self._apply_event(Event.ELECTION_WON, self._candidacy_reason)
        elif given.has_won is None and now_ms < self._epoch_until_ms:
            self._apply_event(Event.MORE_RECORDS, self._candidacy)
        else:
            self._apply_event(Event.ELECTION_LOST)

    # Leading.

    def _on_leadership_gained(self, given: inputs.LeadershipGained, now_ms: int) -> None:
        epoch = self.leadership.epoch
        self.duties.begin(epoch, given.proven_ms, now_ms)
        self._apply_event(Event.LEADERSHIP_GAINED)
        self._add_log_line("info", "leads", epoch=epoch, node=self.me.node, why=self._candidacy_reason)
        if self.is_shutting_down or self._is_core_released:
            self._apply_event(Event.LEADERSHIP_RELINQUISHED, "")

    def _on_tick(self, given: inputs.Tick, now_ms: int) -> None:
        self._apply_event(Event.TICK)
        if self.stage is Stage.LEADING:
            self.duties.tick(given, now_ms)
            if self.duties.is_proven:
                self.leadership.candidacy_timer.record_success()

    def _on_health_check_completed(self, given: inputs.HealthCheckCompleted, now_ms: int) -> None:
        is_leading = self.stage is Stage.LEADING
        self.duties.record_health_check_end(now_ms if is_leading else None)
        if is_leading:
            self.answers.record_progress(given.seen)
            if successor := self.duties.choose_successor(given, now_ms):
                self._apply_event(Event.LEADERSHIP_RELINQUISHED, successor)

    def _on_client_probe_completed(self, given: inputs.ClientProbeCompleted, now_ms: int) -> None:
        if self.duties.resign_unless_reached(given, now_ms):
            self._apply_event(Event.LEADERSHIP_RELINQUISHED, given.node)

    def _on_core_released(self, given: inputs.CoreReleased, _: int) -> None:
        self._add_log_line("warning", "stepped down", reason=str(given.error))
        self._is_core_released = True
        self._apply_event(Event.LEADERSHIP_RELINQUISHED, "")

    def _on_transfer_requested(self, given: inputs.LeadershipTransferRequested, _: int) -> None:
        self._apply_event(Event.LEADERSHIP_RELINQUISHED, given.to)

    def _on_leadership_ended(self, _: inputs.LeadershipEnded, now_ms: int) -> None:
        if self._failure is not None:
            self._handle_failure(self._failure, now_ms)
        else:
            self._apply_event(Event.LEADERSHIP_ENDED)

    # Copying.

    def _on_copies_found(self, given: inputs.CopiesFound, _: int) -> None:
        self.leadership.record_epoch(given.epoch, given.leads)

    def _on_copy_fetched(self, given: inputs.CopyFetched, now_ms: int) -> None:
        self._copied_ms = now_ms
        self._add_log_line("info", "copied", source=given.source)
        self._apply_event(Event.COPY_FETCHED)

    def _wait_for_copy(self, error: Exception) -> None:
        self.copying = f"{self.copying} {error}"
        self._add_log_line("error", "no copy yet", reason=str(error))
        self._apply_event(Event.COPY_UNAVAILABLE)

    # Failures and departure.

    def _on_action_failed(self, given: inputs.ActionFailed, now_ms: int) -> None:
        action, error, recovery_advice, where = given
        if action is not ActionType.CHECK_HEALTH and self.stage not in FAILURE_STAGES.get(action, ()):
            return
        self._recovery_advice, self._unreadable_record = recovery_advice, where
        if action is ActionType.CHECK_HEALTH:
            self.duties.record_health_check_end()
            self._failure = error
            if self.stage is Stage.LEADING:
                self._apply_event(Event.LEADERSHIP_RELINQUISHED, "")
        elif self.stage in CANDIDATE_STAGES and isinstance(error, (EngineUnavailable, EngineRefused)):
            self._handle_lost_election(error)
        elif self.stage is Stage.COPYING and not isinstance(error, (Halted, KeyMismatch, DuplicateNodeName)):
            self._wait_for_copy(error)
        elif self.stage is Stage.READING and isinstance(error, EngineUnavailable):
            self.leadership.candidacy_timer.restart(now_ms)
            self.answers.record_refusal(error.detail, now_ms)
            self._apply_event(Event.ENGINE_UNRESPONSIVE)
        else:
            self._handle_failure(self._failure or error if action is ActionType.HAND_OVER else error, now_ms)

    def _handle_lost_election(self, error: EngineUnavailable | EngineRefused) -> None:
        if isinstance(error, EngineUnavailable):
            self._add_log_line("warning", "the outcome of the candidacy is unknown", reason=error.detail)
            self.answers.unconfirmed_candidacy = error.detail
        else:
            self._add_log_line("info", "the candidacy was lost to another node", reason=str(error))
            self.leadership.candidacy_timer.record_defeat()
        self._must_check = True  # the engine may have lost records that this node has read
        self._apply_event(Event.ELECTION_LOST)

    def _handle_failure(self, error: Exception, now_ms: int) -> None:
        is_beyond = isinstance(error, LogDamaged) and self._unreadable_record is not None
        if is_beyond or isinstance(error, (LogTrimmed, StoreDamaged)):
            self.copying = str(error)
            self._add_log_line("warning", "needs a copy", reason=self.copying)
            again_ms = int(WAIT_SECONDS[Wait.COPY_AGAIN] * 1000)
            if self._copied_ms is not None and now_ms < self._copied_ms + again_ms:
                self._wait_for_copy(CopyRefused("The copy before was no better."))
            else:
                self._apply_event(Event.COPY_NEEDED, self._unreadable_record)
        elif isinstance(error, _HALTING):
            self.halted = f"{error} {self._recovery_advice}".rstrip()
            self._apply_event(Event.HALT_REQUIRED, self.halted)
        else:
            self.reopened = str(error)
            self._add_log_line("error", "the replica is opened again", reason=self.reopened)
            self._apply_event(Event.REPLICA_UNUSABLE)

    def _on_shutdown_requested(self, _: inputs.ShutdownRequested, __: int) -> None:
        self.is_shutting_down = True
        self._apply_event(
            Event.LEADERSHIP_RELINQUISHED if self.stage is Stage.LEADING else Event.SHUTDOWN_REQUESTED, ""
        )


def _apply_leader_input(
    election: Election,
    given: inputs.ProofRequested | inputs.BeatRequest | inputs.HeartbeatAppended,
    now_ms: int,
) -> None:
    election.duties.handle_input(given, now_ms)


_HANDLERS: Final[Mapping[type[Any], Callable[[Election, Any, int], None]]] = {
    inputs.ReplicaOpened: Election._on_replica_opened,
    inputs.RecordApplied: Election._on_record_applied,
    inputs.ReadCompleted: Election._on_read_completed,
    inputs.EpochAppended: Election._on_epoch_appended,
    inputs.EpochConfirmed: Election._on_epoch_confirmed,
    inputs.LeadershipGained: Election._on_leadership_gained,
    inputs.Tick: Election._on_tick,
    inputs.ProofRequested: _apply_leader_input,
    inputs.BeatRequest: _apply_leader_input,
    inputs.HeartbeatAppended: _apply_leader_input,
    inputs.HealthCheckCompleted: Election._on_health_check_completed,
    inputs.ClientProbeCompleted: Election._on_client_probe_completed,
    inputs.CoreReleased: Election._on_core_released,
    inputs.LeadershipTransferRequested: Election._on_transfer_requested,
    inputs.LeadershipEnded: Election._on_leadership_ended,
    inputs.CopiesFound: Election._on_copies_found,
    inputs.CopyFetched: Election._on_copy_fetched,
    inputs.ActionFailed: Election._on_action_failed,
    inputs.ShutdownRequested: Election._on_shutdown_requested,
}
