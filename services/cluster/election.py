"""The election as a state machine: what a node does next, given what it has read and been answered.

    stage          act                           done                      else
    OPENING        open the replica              CHECKING                  REOPENING, or FINDING a copy
    CHECKING       require what was read before  READING                   PAUSED
    READING        read the shared log           READING while it has more PAUSED: the engine gave no answer
                   a checkpoint, a complaint     CHECKPOINTING, COMPLAINING, then as after a read
                   nothing new for long enough   CATCHING_UP               IDLE, then CHECKING or READING
    CATCHING_UP    read to the end               APPENDING                 IDLE
    APPENDING      append an EPOCH               CONFIRMING                IDLE
    CONFIRMING     read up to that EPOCH         COMPARING                 IDLE
    COMPARING      compare it with the newest    STARTING                  IDLE
    STARTING       serve clients                 LEADING                   REOPENING
    LEADING        beat, look, ask clients       HANDING_OVER, or STOPPING where the log is broken
    HANDING_OVER   stop, name a successor        OPENING                   FINDING where the copy is damaged
    FINDING        look for copies               FETCHING                  COPY_PAUSED, then OPENING
    FETCHING       fetch one                     OPENING                   COPY_PAUSED, then OPENING
    HALTED         none, until the process ends

The table itself is data (`services.cluster.election_table`): (stage, event) -> (next stage, act). An input
(`services.cluster.election_inputs`) is an answer to an act, a record that was read, a tick or an order. The
methods here turn it into events by what the machine has noted, and return acts, with lines for the log among
them. `services.cluster.node` carries the acts out, and so does the simulation. The machine reads no clock, no
file and no network.

Rules
1. In every stage but LEADING one act is under way, or one WAIT. Its answer counts in that stage only, and is
   dropped elsewhere. A tick may come early: the node then acts early.
2. Only the shared log decides who leads: LEADING is entered by an EPOCH of this node alone, read back as the
   newest, and left for good once an append was not proven. The core is then thrown away (OPENING): it may
   hold records that were never accepted.
3. The BEATs of a leader, its looks at copy, clock and disk, and its questions to clients run side by side.
4. An engine that gives no answer is asked again without end; a log that contradicts itself is never read
   again (HALTED).
5. An order to leave ends the node in the next stage in which it holds no right to lead, at once where it
   waits. A leader hands over first, also where its own disk has failed: it has its right still.
6. A node that is unfit to lead (`services.cluster.health`) stands later, and hands over to a fit one. A
   leader that reaches no client leaves to the node that complains of it (`services.cluster.reach`).

Cost: a lookup and a few comparisons an input. Weak spot: the table has no guards. They are the methods below,
so a row says what follows from an event, not when the event comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from commitlog.errors import StoreDamaged, StoreError
from services.cluster import election_table, health
from services.cluster.beating import Beating
from services.cluster.election_inputs import (
    AWAITED,
    NO_NEWS,
    ActFailed,
    BeatDone,
    CheckpointDone,
    ClientsAsked,
    Compared,
    ComplaintDone,
    CopiesFound,
    CopyFetched,
    EpochAppended,
    HistoryKept,
    Input,
    LeadBegun,
    LeadEnded,
    Leave,
    LookDone,
    LookFailed,
    Move,
    Order,
    ProofWanted,
    ReadDone,
    RecordTaken,
    ReplicaOpened,
    SteppedDown,
    SteppedOver,
    Tick,
)
from services.cluster.election_table import (
    COPYING,
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
from services.cluster.errors import CopyRefused, NameTaken, OtherKey
from services.cluster.identity import Member
from services.cluster.leadership import Leadership
from services.cluster.one_key import check_key
from services.cluster.reach import Leaving, Reach
from sharedlog.errors import Halted, NoCluster, Refused, TooOld, Trimmed, Unknown

AFTER_HALT: Final = (
    "Keep this node's --store: it may have what no other has. If all nodes halt, stop them, and begin anew "
    "with what the one that has most has: tidewheel cluster restore NEW-URL --from STORE. If this one alone "
    "does, the others go on without that: stop it, and it may get another's copy: tidewheel cluster refetch "
    "--store STORE"
)
"""What an operator does whose shared log is not one history."""
FAILURES: Final = (
    *(Unknown, Refused, Trimmed, Halted, StoreError, OSError, CopyRefused, OtherKey, NameTaken),
)
"""Errors of acts that the machine takes (`ActFailed`, `LookFailed`); any other is a bug of the node."""
_WARNINGS: Final = {
    "lines": "somebody else writes into the shared log: its lines are stepped over. Let nobody but the nodes "
    "write there",
    "records": "the shared log has records twice: the second is equal, and was stepped over. Look at it: "
    "tidewheel cluster doctor URL",
}
"""By count of `SteppedOver`."""
_HALTING: Final = (Halted, NoCluster, OtherKey, NameTaken)
_AT_WORK: Final = (Role.FOLLOWING, Role.STANDING, Role.LEADING)
_END: Final = Row(Stage.LEFT, Act.END)


class Election:
    """The machine of the node `me`; all times are of one clock that never goes back, in ms.

    `draw` gives the holder of an EPOCH, another one each time.
    """

    def __init__(self, me: Member, now_ms: int, draw: Callable[[], bytes]) -> None:
        self.me, self._draw = me, draw
        self.stage, self.role = Stage.OPENING, Role.OPENING
        self.leadership = Leadership(me, now_ms)
        self.reach, self._leaves_for = Reach(), Leaving()
        self.beating: Beating | None = None
        """The BEATs of this node while it leads."""
        self.halted = ""
        """Why this node has halted."""
        self.copying = ""
        """Why this node needs a copy, and why it has none yet."""
        self.takeovers = 0
        self.stepped_over = SteppedOver()
        self.is_leaving = False
        self._refusal, self._refused_ms = "", 0
        """The newest answer of the shared log that is none, and since when; empty while it answers."""
        self._stood_in_vain = ""
        """Why this node could not stand though it can read; empty once any node leads."""
        self._must_check = True
        """Whether what was read before is to be looked for in the log before it is read on."""
        self._read = ReadDone(0, 0, False, False, False, self.stepped_over, "")
        """The newest answer of a read, less what was done about it since."""
        self._epoch_offset = self._epoch_until_ms = 0
        self._why_stood = ""
        self._is_looking, self._look_due_ms = False, 0
        self._look_error: Exception | None = None
        self._complaints: list[tuple[str, tuple[int, int]]] = []
        """Complaints of the newest look that were not looked into yet; the first one is asked about."""
        self._is_over = False
        """Whether the lead is over before it has begun."""
        self._failure: Exception | None = None
        """The failure of the copy, or of its disk, that has ended the lead; None if that was none."""
        self._handed_over_ms: int | None = None
        self._copied_ms: int | None = None
        self._outputs: list[Output] = []

    @property
    def known_leader(self) -> Member | None:
        """The leader; None too where the log names this node, which does not lead, or no longer."""
        led_by_me = self.leadership.leads_by_log
        return None if led_by_me and self.role is not Role.LEADING else self.leadership.leader

    @property
    def refusal(self) -> str:
        """The answer of the shared log that is none; empty while it answers, or is not asked."""
        return (self._refusal or self._stood_in_vain) if self.role in _AT_WORK else ""

    def begin(self) -> list[Output]:
        """Return the first act."""
        return [Output(Act.OPEN)]

    def take(self, given: Input, now_ms: int) -> list[Output]:
        """Take an input in; return what is to be done, in order."""
        kind = type(given)
        if self.stage is Stage.LEFT or (self.stage is Stage.HALTED and kind is not Leave):
            return []
        if kind in AWAITED and self.stage not in AWAITED[kind]:
            return []
        _TAKES[kind](self, given, now_ms)
        outputs, self._outputs = self._outputs, []
        return outputs

    def _on(self, event: Event, argument: Any = None) -> None:
        """Follow the table."""
        row = TABLE.get((self.stage, event))
        if row is None:
            return
        if self.is_leaving and not {self.stage, row.stage} <= HOLDS_RIGHT:
            row, argument = _END, None
        self.stage = row.stage
        self.role = ROLES.get(row.stage, self.role)
        if row.wait is not None:
            argument = SECONDS[row.wait]
        if row.act is not None:
            self._outputs.append(Output(row.act, argument))

    def _say(self, level: str, event: str, **facts: Any) -> None:
        self._outputs.append(Output(Act.SAY, Line(level, event, facts)))

    # Following.

    def _opened(self, given: ReplicaOpened, now_ms: int) -> None:
        self.leadership.know(given.epoch, given.leads)
        self.leadership.has_read_all, self._must_check = False, True
        self.leadership.silence.away(now_ms)
        self.copying, self._is_looking, self._look_error = "", False, None
        self._on(Event.OPENED)

    def _kept(self, _: HistoryKept, __: int) -> None:
        self._must_check = False
        self._on(Event.KEPT)

    def _record_taken(self, given: RecordTaken, now_ms: int) -> None:
        if self.leadership.record_taken(given.step, now_ms):
            self._stood_in_vain = ""
            self._say("info", "epoch", epoch=self.leadership.epoch, leader=self.leadership.facts["node"])

    def _read_done(self, given: ReadDone, now_ms: int) -> None:
        if self.stage is Stage.CATCHING_UP:
            self._caught_up(given)
        elif self.stage is Stage.CONFIRMING:
            is_late = now_ms >= self._epoch_until_ms
            is_read_back = given.next_offset > self._epoch_offset
            self._on(Event.READ_BACK if is_read_back else Event.LOST if is_late else Event.MORE)
        else:
            self._read = given
            self._note_unanswered("", now_ms)
            self._note_stepped_over(given.stepped_over)
            self._after_read(now_ms)

    def _checkpoint_done(self, _: CheckpointDone, now_ms: int) -> None:
        self._read = self._read._replace(is_checkpoint_due=False)
        self._after_read(now_ms)

    def _complaint_done(self, _: ComplaintDone, now_ms: int) -> None:
        self._after_read(now_ms)

    def _after_read(self, now_ms: int) -> None:
        """Do what is due; then read on, wait, or stand."""
        leadership, known = self.leadership, self._read
        address = leadership.leader.listen if leadership.leader else ""
        try:
            leadership.one_name.check(address)
            if not known.records:
                check_key(self.me.node, self.me.key, leadership.epoch, leadership.facts)
        except (NameTaken, OtherKey) as error:
            self._fail(error, now_ms)
            return
        if known.is_checkpoint_due:
            self._on(Event.CHECKPOINT_DUE)
            return
        if self._look_error is not None:
            look_error, self._look_error = self._look_error, None
            self._fail(look_error, now_ms)
            return
        self._look_if_due(now_ms)
        if (number := self._complaint_number(now_ms)) is not None:
            self._say("warning", "the leader does not answer what clients ask", epoch=leadership.epoch)
            self._on(Event.COMPLAINT_DUE, (leadership.epoch, number))
            return
        leadership.has_read_all |= not known.records
        if known.records:
            self._on(Event.MORE)
        elif now_ms >= leadership.silence.stands_ms(leadership.rank, is_unfit=bool(known.unfit)):
            self._why_stood = leadership.why_stand
            leadership.silence.stood(now_ms)
            self._on(Event.SILENT)
        else:
            self._on(Event.CAUGHT_UP)

    def _complaint_number(self, now_ms: int) -> int | None:
        """Return the number of the complaint that is due; None if none is."""
        # What the log says of this node may be of a copy that is gone, until all was read.
        is_known = self._read.is_listed and self.leadership.has_read_all
        return self.reach.complains(self.leadership.epoch, now_ms) if is_known else None

    def _look_if_due(self, now_ms: int) -> None:
        """Look beside all else, one look at a time."""
        if self._is_looking or now_ms < self._look_due_ms:
            return
        self._is_looking = True
        self._look_due_ms = now_ms + int(election_table.LOOK_SECONDS * 1000)
        act = Output(Act.LOOK, self.leadership.has_read_all)
        if self.stage is Stage.LEADING:
            self._on(Event.LOOK_DUE, act.argument)
        else:
            self._outputs.append(act)

    def _note_unanswered(self, reason: str, now_ms: int) -> None:
        """Note the reason why the shared log gives no answer, and since when; say where that changes."""
        if reason and not self._refusal:
            self._refused_ms = now_ms
        if reason and reason != self._refusal:
            self._say("warning", "the shared log does not answer: it is asked again", reason=reason)
        if self._refusal and not reason:
            self._say("info", "the shared log answers again", after_ms=now_ms - self._refused_ms)
        self._refusal = reason

    def _note_stepped_over(self, found: SteppedOver) -> None:
        """Warn of what was stepped over since the last time."""
        for name, sentence in _WARNINGS.items():
            count = getattr(found, name)
            if count > getattr(self.stepped_over, name):
                self._say("warning", sentence, **{name: count}, next_record=found.next_record)
        self.stepped_over = found

    # Standing.

    def _caught_up(self, given: ReadDone) -> None:
        """Read on while more comes, then append an EPOCH."""
        if given.records or not given.is_founded:
            self._on(Event.MORE if given.records else Event.LOST)
            return
        holder = self._draw()
        self.leadership.one_name.drew(holder)
        self._on(Event.CURRENT, holder)

    def _appended(self, given: EpochAppended, now_ms: int) -> None:
        if given.offset is None:
            self._on(Event.LOST)
            return
        self._epoch_offset = given.offset
        self._epoch_until_ms = now_ms + int(election_table.EPOCH_SECONDS * 1000)
        self._on(Event.APPENDED)

    def _compared(self, given: Compared, _: int) -> None:
        if not given.has_won:
            self._on(Event.LOST)
            return
        self._stood_in_vain = ""
        self.takeovers += 1
        self._is_over, self._failure = False, None
        self._on(Event.WON, self._why_stood)

    # Leading.

    def _lead_begun(self, given: LeadBegun, now_ms: int) -> None:
        self.beating = Beating(given.proven_ms)
        self._is_looking, self._look_error, self._complaints = False, None, []
        self._look_due_ms = now_ms + int(election_table.LOOK_SECONDS * 1000)
        self._on(Event.SERVED)
        self._say("info", "leads", epoch=self.leadership.epoch, node=self.me.node, why=self._why_stood)
        if self.is_leaving or self._is_over:
            self._end_lead()

    def _tick(self, given: Tick, now_ms: int) -> None:
        if self.beating is None:
            must_check = self._must_check and self.role is Role.FOLLOWING
            self._on(Event.TICK_CHECK if must_check else Event.TICK)
            return
        self._on(Event.TICK)
        self.beating.proven(given.proven_ms)
        if self.beating.is_proven:
            self.leadership.silence.led()
        self._beat_if_due(given.news, now_ms)
        self._look_if_due(now_ms)

    def _proof_wanted(self, _: ProofWanted, now_ms: int) -> None:
        if self.beating is not None:
            self.beating.is_proof_wanted = True
            self._beat_if_due(NO_NEWS, now_ms)

    def _ordered(self, given: Order, now_ms: int) -> None:
        if self.beating is not None:
            self.beating.ordered(given.number, given.facts)
            self._beat_if_due(NO_NEWS, now_ms)

    def _beat_done(self, given: BeatDone, now_ms: int) -> None:
        if self.beating is not None:
            self.beating.ended(given.proven_ms)
            self._beat_if_due(given.news, now_ms)

    def _beat_if_due(self, news: Mapping[str, Any], now_ms: int) -> None:
        if self.beating is not None and (beat := self.beating.take_next(now_ms, news)) is not None:
            self._on(Event.BEAT_DUE, beat)

    def _look_done(self, given: LookDone, now_ms: int) -> None:
        self._is_looking = False
        if self.stage is not Stage.LEADING:
            return
        self._look_due_ms = now_ms + int(election_table.LOOK_SECONDS * 1000)
        self._note_stepped_over(given.stepped_over)
        may_again = self._handed_over_ms is None or now_ms >= self._handed_over_ms + health.HAND_OVER_AGAIN_MS
        if given.unfit and given.fitter and may_again:
            self._handed_over_ms = now_ms
            self._say("warning", "hands over to a node that is fit", to=given.fitter, why=given.unfit)
            self._end_lead(given.fitter)
            return
        self._complaints = list(given.complaints)
        self._ask_clients(now_ms)

    def _ask_clients(self, now_ms: int) -> None:
        """Look into the next complaint of this lead by another node, if it is to be heeded."""
        while self._complaints:
            node, complaint = self._complaints[0]
            is_of_now = node != self.me.node and complaint[0] == self.leadership.epoch
            if is_of_now and self._leaves_for.heeds(node, complaint, now_ms):
                self._is_looking = True
                self._on(Event.UNREACHED, node)
                return
            del self._complaints[0]

    def _clients_asked(self, given: ClientsAsked, now_ms: int) -> None:
        self._is_looking = False
        if not self._complaints:
            return
        node, _ = self._complaints.pop(0)
        if given.is_reached:
            self._ask_clients(now_ms)
            return
        self._say("warning", "leaves: no client answers here, and another node is called", to=node)
        self._leaves_for.left(now_ms)
        self._end_lead(node)

    def _look_failed(self, given: LookFailed, now_ms: int) -> None:
        self._is_looking = False
        if self.stage is not Stage.LEADING:
            self._look_error = given.error
        elif isinstance(given.error, _HALTING):
            self._fail(given.error, now_ms)
        else:
            self._failure = given.error
            self._end_lead()

    def _stepped_down(self, given: SteppedDown, _: int) -> None:
        self._say("warning", "stepped down", reason=str(given.error))
        if self.stage is Stage.STARTING:
            self._is_over = True
        else:
            self._end_lead()

    def _moved(self, given: Move, _: int) -> None:
        self._end_lead(given.to)

    def _end_lead(self, to: str = "") -> None:
        self.beating = None
        self._on(Event.OVER, to)

    def _lead_ended(self, _: LeadEnded, now_ms: int) -> None:
        if self.stage is Stage.STOPPING:
            self._on(Event.CLOSED, self.halted)
        elif self._failure is not None:
            self._fail(self._failure, now_ms)
        else:
            self._on(Event.CLOSED)

    # Copying.

    def _needs_copy(self, why: str, now_ms: int) -> None:
        self.copying = why
        self._say("warning", "needs a copy", reason=why)
        again_ms = int(SECONDS[Wait.COPY_AGAIN] * 1000)
        if self._copied_ms is not None and now_ms < self._copied_ms + again_ms:
            self._no_copy(CopyRefused("The copy before was no better."))
        else:
            self._on(Event.NEEDS_COPY)

    def _no_copy(self, error: Exception) -> None:
        self.copying = f"{self.copying} {error}"
        self._say("error", "no copy yet", reason=str(error))
        self._on(Event.NO_COPY)

    def _copies_found(self, given: CopiesFound, _: int) -> None:
        self.leadership.know(given.epoch, given.leads)
        self._on(Event.FOUND)

    def _copy_fetched(self, given: CopyFetched, now_ms: int) -> None:
        self._copied_ms = now_ms
        self._say("info", "copied", source=given.source)
        self._on(Event.COPIED)

    # Failures, and the end.

    def _act_failed(self, given: ActFailed, now_ms: int) -> None:
        error = given.error
        if self.stage in STANDING and isinstance(error, (Unknown, Refused)):
            self._not_elected(error)
        elif self.stage in COPYING and not isinstance(error, (Halted, OtherKey, NameTaken)):
            self._no_copy(error)
        elif isinstance(error, Unknown) and (self.stage, Event.UNANSWERED) in TABLE:
            self.leadership.silence.away(now_ms)
            self._note_unanswered(error.detail, now_ms)
            self._on(Event.UNANSWERED)
        else:
            self._fail(error, now_ms)

    def _not_elected(self, error: Unknown | Refused) -> None:
        if isinstance(error, Unknown):
            self._say("warning", "stood, and nobody knows what came of it", reason=error.detail)
            self._stood_in_vain = error.detail
        else:
            self._say("info", "stood, and another was first", reason=str(error))
            self.leadership.silence.lost()
            self._must_check = True  # or the engine lacks what this node has read
        self._on(Event.LOST)

    def _fail(self, error: Exception, now_ms: int) -> None:
        if isinstance(error, (Trimmed, StoreDamaged)):
            self._needs_copy(str(error), now_ms)
        elif isinstance(error, _HALTING):
            self.beating = None
            self.halted = f"{error} {AFTER_HALT}" if is_no_history(error) else str(error)
            self._say("error", "halted", reason=self.halted)
            self._on(Event.HALT, self.halted)
        else:
            self._say("error", "the replica is opened again", reason=str(error))
            self._on(Event.VOID)

    def _leave(self, _: Leave, __: int) -> None:
        self.is_leaving = True
        if self.stage is Stage.LEADING:
            self._end_lead()
        else:
            self._on(Event.LEAVE)


def is_no_history(error: Exception) -> bool:
    """Return whether a node halts because the shared log is not one history, or is gone."""
    return isinstance(error, (Halted, NoCluster)) and not isinstance(error, TooOld)


_TAKES: Final[Mapping[type[Any], Callable[[Election, Any, int], None]]] = {
    ReplicaOpened: Election._opened,
    HistoryKept: Election._kept,
    RecordTaken: Election._record_taken,
    ReadDone: Election._read_done,
    CheckpointDone: Election._checkpoint_done,
    ComplaintDone: Election._complaint_done,
    EpochAppended: Election._appended,
    Compared: Election._compared,
    LeadBegun: Election._lead_begun,
    Tick: Election._tick,
    ProofWanted: Election._proof_wanted,
    Order: Election._ordered,
    BeatDone: Election._beat_done,
    LookDone: Election._look_done,
    LookFailed: Election._look_failed,
    ClientsAsked: Election._clients_asked,
    SteppedDown: Election._stepped_down,
    Move: Election._moved,
    LeadEnded: Election._lead_ended,
    CopiesFound: Election._copies_found,
    CopyFetched: Election._copy_fetched,
    ActFailed: Election._act_failed,
    Leave: Election._leave,
}
