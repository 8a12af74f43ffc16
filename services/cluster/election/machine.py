"""The election state machine, which decides what a node does next.

    stage          action                        done                      else
    OPENING        open the replica              READING                   REOPENING, or COPYING
    READING        check old records, read       READING while new records IDLE if the engine is unresponsive
                   leader silent                 CATCHING_UP               IDLE, then READING
    CATCHING_UP    read to the end               APPENDING                 IDLE
    APPENDING      append an EPOCH record        CONFIRMING                IDLE
    CONFIRMING     read it back and compare it   STARTING                  IDLE
    STARTING       serve clients                 LEADING                   REOPENING
    LEADING        BEATs (`leader_duties`)       HANDING_OVER
    HANDING_OVER   stop, name a successor        OPENING                   COPYING, or HALTED
    COPYING        fetch a copy                  OPENING                   COPY_PAUSED, then OPENING
    HALTED         none until the process ends

The transition table (`services.cluster.election.table`) maps a stage and an event to the next stage and its
action. An input (`services.cluster.election.inputs`) is an action result, a shared log record, a tick, or a
command. This module translates inputs into events and returns the actions to perform, including log output.
The node (`services.cluster.node`) or the simulation performs them. The state machine never accesses clocks,
files or the network.

Rules
1. Each stage runs exactly one action or one WAIT. A result that arrives in a different stage is discarded. An
   early tick only starts the next action early. Checks, complaints, BEAT appends, and client probes run
   concurrently with the stage's action.
2. The shared log alone determines the leader. A node enters LEADING only after reading back its own EPOCH
   record as the newest one. It leaves LEADING if an append is not confirmed. A node that stops leading
   discards its core (OPENING), because the core may contain unaccepted records.
3. If the engine does not respond, the node retries indefinitely. If the shared log is inconsistent, the node
   stops reading it (HALTED). If a record is damaged, the node needs a copy that extends past that record
   (COPYING).
4. When asked to leave, a waiting node exits immediately. A node that is running an action exits at the next
   transition, unless it may hold the right to lead. A leader hands over the leadership first, even if its
   disk has failed.
5. An unfit node (`health`) becomes a candidate later than other nodes. A follower appends a complaint if the
   leader does not respond to forwarded calls (`reach`).

Cost: each input requires one table lookup and a few comparisons. Weak spot: the table shows only the effects
of events. The conditions that cause events are in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from commitlog.errors import StoreDamaged, StoreError
from services.cluster.election import inputs
from services.cluster.election import table as election_table
from services.cluster.election.inputs import AWAITED, AWAITED_ACTS, Input
from services.cluster.election.leader_duties import LeaderDuties
from services.cluster.election.leadership import Leadership
from services.cluster.election.log_answers import LogAnswers
from services.cluster.election.reach import LeaderReachability
from services.cluster.election.table import (
    HOLDS_RIGHT,
    ROLES,
    SECONDS,
    STANDING,
    TABLE,
    Act,
    Event,
    Line,
    Output,
    Role,
    Row,
    Stage,
    Wait,
)
from services.cluster.errors import CopyRefused, DuplicateNodeName, KeyMismatch
from services.cluster.identity import Member
from sharedlog.errors import Halted, LogDamaged, NoCluster, Refused, Trimmed, Unknown
from sharedlog.holdings import Unreadable

FAILURES: Final = (
    *(Unknown, Refused, Trimmed, Halted, StoreError, OSError, CopyRefused, KeyMismatch, DuplicateNodeName),
)
"""The action errors that the state machine handles (`Failed`). All other errors are bugs."""
_HALTING: Final = (Halted, NoCluster, KeyMismatch, DuplicateNodeName)
_END: Final = Row(Stage.LEFT, Act.END)


class Election:
    """The election state machine of the node `me`.

    All times are readings of one monotonic clock in milliseconds. `draw` returns a new random holder for each
    EPOCH record.
    """

    def __init__(self, me: Member, now_ms: int, draw: Callable[[], bytes]) -> None:
        self.me, self._draw = me, draw
        self.stage, self.role = Stage.OPENING, Role.OPENING
        self.leadership, self.reachability = Leadership(me, now_ms), LeaderReachability()
        self.duties = LeaderDuties(me.node, self._add_act, self._add_log_line)
        self.answers = LogAnswers(self._add_log_line)
        self.halted = self._ways_on = ""
        """Why this node has halted, or "" if it has not."""
        self.copying = ""
        """Why this node needs a copy and has not received one yet, or "" if it needs none.
        """
        self.reopened = ""
        """Why the node has reopened the replica. Reset to "" when the whole log has been read.
        """
        self.takeovers, self.is_leaving = 0, False
        self._must_check = True
        """Whether the next read must verify that the log still contains the records already read."""
        self._why_stood, self._epoch_until_ms = "", 0
        self._candidacy: Any = None
        self._is_void = False
        """Whether the leader's core is unusable. Can be set even before the node serves clients."""
        self._failure: Exception | None = None
        """A copy or log failure found by a check. It ends the current role."""
        self._where: Unreadable | None = None
        """The unreadable record that caused the last failure, or None."""
        self._copied_ms: int | None = None
        self._outputs: list[Output] = []

    def begin(self) -> list[Output]:
        """Return the first action, which opens the replica."""
        return [Output(Act.OPEN)]

    def handle_input(self, given: Input, now_ms: int) -> list[Output]:
        """Apply an input, and return the resulting actions in order."""
        kind = type(given)
        if self.stage is Stage.LEFT or (self.stage is Stage.HALTED and kind is not inputs.Leave):
            return []
        if self.stage in AWAITED.get(kind, Stage):
            _HANDLERS[kind](self, given, now_ms)
        outputs, self._outputs = self._outputs, []
        return outputs

    def _apply_event(self, event: Event, argument: Any = None) -> None:
        """Apply the table row for an event. Ignore events without a row."""
        row = TABLE.get((self.stage, event))
        if row is None:
            return
        if self.is_leaving and not {self.stage, row.stage} <= HOLDS_RIGHT:
            row, argument = _END, None
        self.stage = row.stage
        self.role = ROLES.get(row.stage, self.role)
        if row.wait is not None:
            argument = SECONDS[row.wait]
        elif row.act is Act.READ:
            argument = self._must_check
        self._add_act(row.act, argument)

    def _add_act(self, act: Act, argument: Any) -> None:
        self._outputs.append(Output(act, argument))

    def _add_log_line(self, level: str, event: str, **facts: Any) -> None:
        self._add_act(Act.SAY, Line(level, event, facts))

    # Following.

    def _on_opened(self, given: inputs.Opened, now_ms: int) -> None:
        self.leadership.record_epoch(given.epoch, given.leads)
        self.leadership.has_read_all, self._must_check = False, True
        self.leadership.candidacy_timer.restart(now_ms)
        self.copying, self._failure, self._where, self.answers.seen = "", None, None, given.seen
        self.duties.end_look()
        self._apply_event(Event.OPENED)

    def _on_record_taken(self, given: inputs.RecordTaken, now_ms: int) -> None:
        if self.leadership.record_taken(given.step, now_ms):
            self.answers.stood_in_vain = ""
            self._add_log_line(
                "info", "epoch", epoch=self.leadership.epoch, leader=self.leadership.facts["node"]
            )

    def _on_read_done(self, given: inputs.ReadDone, now_ms: int) -> None:
        self.answers.note_seen(given.seen)
        if self.stage is Stage.READING:
            self._must_check = False
            self.answers.note_answered(now_ms)
            self._continue_following(given, now_ms)
        elif given.records or not given.is_founded:
            self._apply_event(Event.MORE if given.records else Event.LOST)
        else:
            holder = self._draw()
            self.leadership.duplicate_name.record_own_holder(holder)
            self._apply_event(Event.CURRENT, holder)

    def _continue_following(self, given: inputs.ReadDone, now_ms: int) -> None:
        """Start any due check or complaint, and then read on, wait, or become a candidate."""
        leadership = self.leadership
        try:
            leadership.check(is_newest=not given.records)
        except (DuplicateNodeName, KeyMismatch) as error:
            self._failure = error
        if self._failure is not None:
            self._handle_failure(self._failure, now_ms)
            return
        self.duties.look_if_due(now_ms, has_read_all=leadership.has_read_all)
        # Until the node has read the whole log, its entry in the holdings may describe a discarded copy.
        if given.is_listed and leadership.has_read_all:
            self._complain_if_due(now_ms)
        if not given.records:
            leadership.has_read_all, self.reopened = True, ""
        if given.records:
            self._apply_event(Event.MORE)
        elif now_ms >= leadership.candidacy_timer.candidacy_ms(leadership.rank, is_unfit=bool(given.unfit)):
            self._why_stood = leadership.candidacy_reason
            leadership.candidacy_timer.record_candidacy(now_ms)
            self._apply_event(Event.SILENT)
        else:
            self._apply_event(Event.CAUGHT_UP)

    def _complain_if_due(self, now_ms: int) -> None:
        """Append a complaint if the leader does not respond to forwarded calls."""
        epoch = self.leadership.epoch
        if (number := self.reachability.next_complaint(epoch, now_ms)) is not None:
            self._add_log_line("warning", "the leader does not answer what clients ask", epoch=epoch)
            self._add_act(Act.COMPLAIN, (epoch, number))

    # Candidacy.

    def _on_appended(self, given: inputs.Appended, now_ms: int) -> None:
        self._epoch_until_ms = now_ms + int(election_table.EPOCH_SECONDS * 1000)
        self._candidacy = given.candidacy
        self._apply_event(Event.LOST if given.candidacy is None else Event.APPENDED, given.candidacy)

    def _on_confirmed(self, given: inputs.Confirmed, now_ms: int) -> None:
        if given.has_won:
            self.answers.stood_in_vain = ""
            self.takeovers += 1
            self._is_void, self._failure = False, None
            self._apply_event(Event.WON, self._why_stood)
        elif given.has_won is None and now_ms < self._epoch_until_ms:
            self._apply_event(Event.MORE, self._candidacy)
        else:
            self._apply_event(Event.LOST)

    # Leading.

    def _on_begun(self, given: inputs.Begun, now_ms: int) -> None:
        epoch = self.leadership.epoch
        self.duties.begin(epoch, given.proven_ms, now_ms)
        self._apply_event(Event.SERVED)
        self._add_log_line("info", "leads", epoch=epoch, node=self.me.node, why=self._why_stood)
        if self.is_leaving or self._is_void:
            self._apply_event(Event.OVER, "")

    def _on_tick(self, given: inputs.Tick, now_ms: int) -> None:
        self._apply_event(Event.TICK)
        if self.stage is Stage.LEADING:
            self.duties.tick(given, now_ms)
            if self.duties.is_proven:
                self.leadership.candidacy_timer.record_success()

    def _on_look_done(self, given: inputs.LookDone, now_ms: int) -> None:
        is_leading = self.stage is Stage.LEADING
        self.duties.end_look(now_ms if is_leading else None)
        if is_leading:
            self.answers.note_seen(given.seen)
            if successor := self.duties.choose_successor(given, now_ms):
                self._apply_event(Event.OVER, successor)

    def _on_clients_asked(self, given: inputs.ClientsAsked, now_ms: int) -> None:
        if self.duties.leave_unless_reached(given, now_ms):
            self._apply_event(Event.OVER, given.node)

    def _on_stepped_down(self, given: inputs.SteppedDown, _: int) -> None:
        self._add_log_line("warning", "stepped down", reason=str(given.error))
        self._is_void = True
        self._apply_event(Event.OVER, "")

    def _on_move(self, given: inputs.Move, _: int) -> None:
        self._apply_event(Event.OVER, given.to)

    def _on_ended(self, _: inputs.Ended, now_ms: int) -> None:
        if self._failure is not None:
            self._handle_failure(self._failure, now_ms)
        else:
            self._apply_event(Event.CLOSED)

    # Copying.

    def _on_copies_found(self, given: inputs.CopiesFound, _: int) -> None:
        self.leadership.record_epoch(given.epoch, given.leads)

    def _on_copied(self, given: inputs.Copied, now_ms: int) -> None:
        self._copied_ms = now_ms
        self._add_log_line("info", "copied", source=given.source)
        self._apply_event(Event.COPIED)

    def _wait_for_copy(self, error: Exception) -> None:
        self.copying = f"{self.copying} {error}"
        self._add_log_line("error", "no copy yet", reason=str(error))
        self._apply_event(Event.NO_COPY)

    # Failures and departure.

    def _on_failed(self, given: inputs.Failed, now_ms: int) -> None:
        act, error, recovery_advice, where = given
        if act is not Act.LOOK and self.stage not in AWAITED_ACTS.get(act, ()):
            return
        self._ways_on, self._where = recovery_advice, where
        if act is Act.LOOK:
            self.duties.end_look()
            self._failure = error
            if self.stage is Stage.LEADING:
                self._apply_event(Event.OVER, "")
        elif self.stage in STANDING and isinstance(error, (Unknown, Refused)):
            self._handle_lost_election(error)
        elif self.stage is Stage.COPYING and not isinstance(error, (Halted, KeyMismatch, DuplicateNodeName)):
            self._wait_for_copy(error)
        elif self.stage is Stage.READING and isinstance(error, Unknown):
            self.leadership.candidacy_timer.restart(now_ms)
            self.answers.note_refusal(error.detail, now_ms)
            self._apply_event(Event.UNANSWERED)
        else:
            self._handle_failure(self._failure or error if act is Act.HAND_OVER else error, now_ms)

    def _handle_lost_election(self, error: Unknown | Refused) -> None:
        if isinstance(error, Unknown):
            self._add_log_line("warning", "the outcome of the candidacy is unknown", reason=error.detail)
            self.answers.stood_in_vain = error.detail
        else:
            self._add_log_line("info", "the candidacy was lost to another node", reason=str(error))
            self.leadership.candidacy_timer.record_defeat()
        self._must_check = True  # the engine may have lost records that this node has already read
        self._apply_event(Event.LOST)

    def _handle_failure(self, error: Exception, now_ms: int) -> None:
        is_beyond = isinstance(error, LogDamaged) and self._where is not None
        if is_beyond or isinstance(error, (Trimmed, StoreDamaged)):
            self.copying = str(error)
            self._add_log_line("warning", "needs a copy", reason=self.copying)
            again_ms = int(SECONDS[Wait.COPY_AGAIN] * 1000)
            if self._copied_ms is not None and now_ms < self._copied_ms + again_ms:
                self._wait_for_copy(CopyRefused("The copy before was no better."))
            else:
                self._apply_event(Event.NEEDS_COPY, self._where)
        elif isinstance(error, _HALTING):
            self.halted = f"{error} {self._ways_on}".rstrip()
            self._apply_event(Event.HALT, self.halted)
        else:
            self.reopened = str(error)
            self._add_log_line("error", "the replica is opened again", reason=self.reopened)
            self._apply_event(Event.VOID)

    def _on_leave(self, _: inputs.Leave, __: int) -> None:
        self.is_leaving = True
        self._apply_event(Event.OVER if self.stage is Stage.LEADING else Event.LEAVE, "")


def _apply_duty_input(
    election: Election, given: inputs.ProofWanted | inputs.Order | inputs.HeartbeatDone, now_ms: int
) -> None:
    election.duties.handle_input(given, now_ms)


_HANDLERS: Final[Mapping[type[Any], Callable[[Election, Any, int], None]]] = {
    inputs.Opened: Election._on_opened,
    inputs.RecordTaken: Election._on_record_taken,
    inputs.ReadDone: Election._on_read_done,
    inputs.Appended: Election._on_appended,
    inputs.Confirmed: Election._on_confirmed,
    inputs.Begun: Election._on_begun,
    inputs.Tick: Election._on_tick,
    inputs.ProofWanted: _apply_duty_input,
    inputs.Order: _apply_duty_input,
    inputs.HeartbeatDone: _apply_duty_input,
    inputs.LookDone: Election._on_look_done,
    inputs.ClientsAsked: Election._on_clients_asked,
    inputs.SteppedDown: Election._on_stepped_down,
    inputs.Move: Election._on_move,
    inputs.Ended: Election._on_ended,
    inputs.CopiesFound: Election._on_copies_found,
    inputs.Copied: Election._on_copied,
    inputs.Failed: Election._on_failed,
    inputs.Leave: Election._on_leave,
}
