"""The election: each row of its table by inputs, and what holds for any sequence of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from commitlog.errors import NoRoom, StoreDamaged
from services.cluster.copies.refetching import AFTER_HALT
from services.cluster.election import health
from services.cluster.election.candidacy_timer import BEAT_MS, SILENCE_MS
from services.cluster.election.inputs import (
    AWAITED,
    AWAITED_ACTS,
    Appended,
    Begun,
    ClientsAsked,
    Confirmed,
    Copied,
    CopiesFound,
    Ended,
    Failed,
    HeartbeatDone,
    Input,
    Leave,
    LookDone,
    Move,
    Opened,
    Order,
    ProofWanted,
    ReadDone,
    ReadProgress,
    RecordTaken,
    SteppedDown,
    Tick,
)
from services.cluster.election.machine import Election
from services.cluster.election.table import (
    BESIDE,
    ROLES,
    SECONDS,
    TABLE,
    WAITING,
    Act,
    Event,
    Output,
    Role,
    Stage,
    Wait,
)
from services.cluster.errors import CopyRefused, DuplicateNodeName
from services.cluster.identity import Member
from services.cluster.node import is_history_lost
from sharedlog.errors import Halted, LogDamaged, NoCluster, NotAccepted, Refused, TooOld, Trimmed, Unknown
from sharedlog.fold import Outcome, Step
from sharedlog.holdings import Unreadable
from sharedlog.record import CHAIN_AT_GENESIS, Kind, SharedRecord, encode_facts

CLUSTER = b"one cluster's id"
ME, OTHER = Member("a", "a:1", "http://a:2"), Member("b", "b:1", "http://b:2")
EARLY_MS, SILENT_MS = 18_000, 20_000
"""When the replica is opened; and when no leader was heard for so long that the node stands."""
At = tuple[Input | Callable[[Election], None], int]


def read(
    records: int = 0, *, is_founded: bool = True, is_listed: bool = False, foreign: int = 0, unfit: str = ""
) -> ReadDone:
    return ReadDone(records, ReadProgress(0, 1, foreign), is_founded, is_listed, unfit)


def early(*inputs: Any) -> list[At]:
    return [(one, EARLY_MS) for one in inputs]


def late(*inputs: Any) -> list[At]:
    return [(one, SILENT_MS) for one in inputs]


def calls_fail(election: Election) -> None:
    """Let clients call for a while, and the leader not answer."""
    election.reachability.record_failure(election.leadership.epoch, SILENT_MS - 5_000, SILENT_MS)


def failed(act: Act, error: Exception) -> Failed:
    return Failed(act, error)


OPENED = Opened(0, {})
TRIMMED, AWAY, DISK = Trimmed("gone"), Unknown("away"), OSError("disk")
CANDIDACY = object(), 7
READING = early(OPENED)
CATCHING_UP = [*READING, *late(read())]
LEADING = [*CATCHING_UP, *late(read(), Appended(CANDIDACY), Confirmed(True), Begun(SILENT_MS))]
COPYING = early(failed(Act.OPEN, TRIMMED))
REACH: dict[Stage, list[At]] = {
    Stage.OPENING: [],
    Stage.REOPENING: early(failed(Act.OPEN, DISK)),
    Stage.READING: READING,
    Stage.IDLE: [*READING, *early(read())],
    Stage.CATCHING_UP: CATCHING_UP,
    Stage.APPENDING: LEADING[:3],
    Stage.CONFIRMING: LEADING[:4],
    Stage.STARTING: LEADING[:5],
    Stage.LEADING: LEADING,
    Stage.HANDING_OVER: [*LEADING, *late(Move("b"))],
    Stage.COPYING: COPYING,
    Stage.COPY_PAUSED: [*COPYING, *early(failed(Act.COPY, AWAY))],
    Stage.HALTED: early(failed(Act.OPEN, Halted("two histories"))),
    Stage.LEFT: early(failed(Act.OPEN, DISK), Leave()),
}
ACT_OF = {row.stage: row.act for row in TABLE.values()}
"""The act that is under way in a stage."""
COPIED_JUST_NOW = [*COPYING, *early(CopiesFound(0, {}), Copied("node b"))]
COMPLAINT = LookDone(ReadProgress(), complaints=(("b", (0, 1)),))
ERRORS: dict[Event, Exception] = {
    Event.NEEDS_COPY: StoreDamaged("a hole"),
    Event.NO_COPY: StoreDamaged("a hole"),
    Event.VOID: DISK,
    Event.HALT: Halted("two histories"),
}
TRIGGERS: dict[Event, list[At]] = {
    Event.OPENED: early(OPENED),
    Event.MORE: early(read(1)),
    Event.CAUGHT_UP: early(read()),
    Event.UNANSWERED: early(failed(Act.READ, AWAY)),
    Event.SILENT: late(read()),
    Event.CURRENT: late(read()),
    Event.APPENDED: late(Appended(CANDIDACY)),
    Event.WON: late(Confirmed(True)),
    Event.SERVED: late(Begun(SILENT_MS)),
    Event.OVER: late(Move("b")),
    Event.CLOSED: late(Ended()),
    Event.COPIED: early(Copied("node b")),
    Event.TICK: early(Tick()),
    Event.LEAVE: early(Leave()),
}
SPECIAL: dict[tuple[Stage, Event], list[At]] = {
    (Stage.CONFIRMING, Event.MORE): late(Confirmed(None)),
    (Stage.CATCHING_UP, Event.LOST): late(read(is_founded=False)),
    (Stage.APPENDING, Event.LOST): late(Appended(None)),
    (Stage.CONFIRMING, Event.LOST): [(Confirmed(None), SILENT_MS + 3_000)],
    (Stage.COPYING, Event.NO_COPY): early(failed(Act.COPY, CopyRefused("no"))),
}
ANOTHER_WAY: dict[tuple[Stage, Event], list[At]] = {
    (Stage.HANDING_OVER, event): [
        *(COPIED_JUST_NOW if event is Event.NO_COPY else []),
        *(*LEADING, *late(failed(Act.LOOK, error), Ended())),
    ]
    for event, error in ERRORS.items()
}
"""Rows that are not reached by REACH and one trigger: all inputs from the beginning."""


def draw() -> Callable[[], bytes]:
    numbers = count(1)
    return lambda: next(numbers).to_bytes(16, "big")


def play(inputs: list[At], me: Member = ME) -> tuple[Election, list[list[Output]]]:
    """Give a new machine some inputs; return it, and the outputs of each."""
    election, outputs = Election(me, EARLY_MS, draw()), []
    assert election.begin() == [Output(Act.OPEN)]
    for one, now_ms in inputs:
        if isinstance(one, tuple):
            outputs.append(election.handle_input(one, now_ms))
        else:
            one(election)
    return election, outputs


def acts(outputs: list[Output]) -> list[Act]:
    return [one.act for one in outputs if one.act is not Act.SAY]


def lines(outputs: list[list[Output]]) -> list[str]:
    return [one.argument.event for each in outputs for one in each if one.act is Act.SAY]


def way_to(row: tuple[Stage, Event]) -> list[At]:
    stage, event = row
    if row in ANOTHER_WAY:
        return ANOTHER_WAY[row]
    if row in SPECIAL:
        return [*REACH[stage], *SPECIAL[row]]
    if event in ERRORS:
        before = COPIED_JUST_NOW if event is Event.NO_COPY else []
        return [*before, *REACH[stage], *late(failed(ACT_OF[stage], ERRORS[event]))]
    return [*REACH[stage], *TRIGGERS[event]]


@pytest.mark.parametrize("stage", Stage, ids=lambda one: one.name)
def test_each_stage_is_reached(stage: Stage) -> None:
    election, _ = play(REACH[stage])
    assert election.stage is stage
    if stage is not Stage.LEFT:
        assert election.role is ROLES[stage]


@pytest.mark.parametrize("row", TABLE, ids=lambda one: str(one))
def test_each_row_follows_from_inputs(row: tuple[Stage, Event]) -> None:
    inputs = way_to(row)
    before, _ = play(inputs[:-1])
    assert before.stage is row[0]
    after, outputs = play(inputs)
    to = TABLE[row]
    assert after.stage is to.stage
    assert to.act in acts(outputs[-1])
    if to.wait is not None:
        assert Output(Act.WAIT, SECONDS[to.wait]) in outputs[-1]


def test_an_engine_that_does_not_answer_is_no_silence_and_said_once() -> None:
    away = early(failed(Act.READ, AWAY), Tick(), failed(Act.READ, AWAY), Tick())
    election, outputs = play([*READING, *away])
    assert election.answers.refusal.endswith("away")
    assert lines(outputs).count("the shared log does not answer: it is asked again") == 1
    said = election.handle_input(read(1), EARLY_MS + 70)
    assert said[0].argument.facts == {"after_ms": 70}
    assert election.answers.refusal == ""
    election.handle_input(failed(Act.READ, AWAY), SILENT_MS)
    election.handle_input(Tick(), SILENT_MS)
    assert acts(election.handle_input(read(), SILENT_MS + SILENCE_MS - 1)) == [Act.WAIT]
    election.handle_input(Tick(), SILENT_MS)
    assert Act.CATCH_UP in acts(election.handle_input(read(), SILENT_MS + SILENCE_MS))
    assert election.role is Role.STANDING


@pytest.mark.parametrize(
    ("error", "is_history"),
    [
        (Halted("two"), True),
        (NoCluster("gone"), True),
        (TooOld("old"), False),
        (DuplicateNodeName("two a"), False),
    ],
)
def test_a_node_that_halts_says_why_and_what_to_do(error: Exception, is_history: bool) -> None:
    election, outputs = play(
        [*READING, *early(Failed(Act.READ, error, AFTER_HALT if is_history_lost(error) else ""))]
    )
    assert (election.stage, acts(outputs[-1])) == (Stage.HALTED, [Act.HALT])
    assert ("tidewheel cluster restore" in election.halted) is is_history
    assert acts(election.handle_input(Leave(), SILENT_MS)) == [Act.END]


def test_a_leader_hands_over_first_and_then_leaves() -> None:
    election, outputs = play([*LEADING, *late(Leave(), Ended())])
    assert outputs[-2][-1] == Output(Act.HAND_OVER, "")
    assert (acts(outputs[-1]), election.stage, election.role) == ([Act.END], Stage.LEFT, Role.OPENING)


@pytest.mark.parametrize(
    ("error", "looked", "stage", "act"),
    [
        (NoRoom("full"), None, Stage.REOPENING, Act.WAIT),
        (DISK, None, Stage.REOPENING, Act.WAIT),
        (NoRoom("full"), StoreDamaged("a hole"), Stage.COPYING, Act.COPY),
    ],
)
def test_a_leader_whose_disk_fails_as_it_hands_over_opens_its_copy_again_or_gets_another(
    error: Exception, looked: Exception | None, stage: Stage, act: Act
) -> None:
    over = Move("b") if looked is None else failed(Act.LOOK, looked)
    election, outputs = play([*LEADING, *late(over, failed(Act.HAND_OVER, error))])
    assert (election.stage, acts(outputs[-1])[-1]) == (stage, act)
    election, outputs = play([*LEADING, *late(over, Leave(), failed(Act.HAND_OVER, error))])
    assert (election.stage, acts(outputs[-1])[-1]) == (Stage.LEFT, Act.END)


@pytest.mark.parametrize("stage", [Stage.APPENDING, Stage.CONFIRMING, Stage.STARTING])
def test_a_candidate_that_is_to_leave_goes_on_until_it_holds_no_right(stage: Stage) -> None:
    at = len(REACH[stage])
    inputs = [*LEADING[:at], *late(Leave()), *LEADING[at:]]
    election, outputs = play(inputs)
    assert (election.stage, acts(outputs[-1])[-1]) == (Stage.HANDING_OVER, Act.HAND_OVER)


def test_a_leader_that_steps_down_while_it_starts_ends_its_lead_at_once() -> None:
    starting = REACH[Stage.STARTING]
    election, outputs = play([*starting, *late(SteppedDown(NotAccepted("no")), *[LEADING[-1][0]])])
    assert election.stage is Stage.HANDING_OVER
    assert "stepped down" in lines(outputs)
    assert acts(election.handle_input(Ended(), SILENT_MS)) == [Act.OPEN]


def test_one_beat_is_under_way_at_a_time_and_orders_go_first() -> None:
    election, _ = play(LEADING)
    first, second = Order({"forget": "c"}, "first"), Order({"finalize": 2}, "second")
    assert election.handle_input(first, SILENT_MS) == [Output(Act.BEAT, first)]
    assert election.handle_input(ProofWanted(), SILENT_MS) == []
    assert election.handle_input(second, SILENT_MS) == []
    assert election.handle_input(HeartbeatDone(SILENT_MS), SILENT_MS) == [Output(Act.BEAT, second)]
    assert election.handle_input(HeartbeatDone(SILENT_MS), SILENT_MS) == []
    assert election.handle_input(Tick(SILENT_MS), SILENT_MS + BEAT_MS - 1) == [
        Output(Act.WAIT, SECONDS[Wait.BEAT])
    ]
    beats = election.handle_input(Tick(SILENT_MS), SILENT_MS + BEAT_MS)
    assert beats == [Output(Act.WAIT, SECONDS[Wait.BEAT]), Output(Act.BEAT, Order({}))]
    news = election.handle_input(HeartbeatDone(SILENT_MS, {"certificate": "new"}), SILENT_MS)
    assert news == [Output(Act.BEAT, Order({"certificate": "new"}))]


def test_a_follower_complains_once_it_is_listed_and_has_read_all() -> None:
    election, _ = play([*READING, *early(read(1, is_listed=True), read(), calls_fail, Tick())])
    assert Act.COMPLAIN not in acts(election.handle_input(read(1), SILENT_MS))
    assert Output(Act.COMPLAIN, (0, 1)) in election.handle_input(read(1, is_listed=True), SILENT_MS)
    assert Act.COMPLAIN not in acts(election.handle_input(read(1, is_listed=True), SILENT_MS))


def test_a_node_checks_the_past_when_it_has_opened_and_when_another_was_first() -> None:
    _, outputs = play([*CATCHING_UP, *late(read(), failed(Act.APPEND_EPOCH, Refused("first")), Tick())])
    assert outputs[0][-1] == Output(Act.READ, True)
    assert outputs[-1][-1] == Output(Act.READ, True)
    _, outputs = play([*READING, *early(read(1))])
    assert outputs[-1][-1] == Output(Act.READ, False)


def test_an_unfit_leader_hands_over_to_a_fit_node_and_not_again_at_once() -> None:
    look = LookDone(ReadProgress(), True, None, "its clock is off", "b")
    election, outputs = play([*LEADING, *late(look)])
    assert outputs[-1][-1] == Output(Act.HAND_OVER, "b")
    for one, now_ms in [(Ended(), SILENT_MS), *[(one, now) for one, now in LEADING]]:
        election.handle_input(one, now_ms)  # type: ignore[arg-type]  # the list holds inputs of all types
    election.handle_input(LookDone(ReadProgress(), True, None, "its clock is off"), SILENT_MS)
    assert election.stage is not Stage.HANDING_OVER
    if election.stage is Stage.LEADING:
        assert acts(election.handle_input(look, SILENT_MS + health.HAND_OVER_AGAIN_MS - 1)) == []
        assert Act.HAND_OVER in acts(election.handle_input(look, SILENT_MS + health.HAND_OVER_AGAIN_MS))


def test_a_leader_that_no_client_answers_leaves_to_the_node_that_complains() -> None:
    election, outputs = play([*LEADING, *late(COMPLAINT)])
    assert outputs[-1] == [Output(Act.ASK_CLIENTS, "b")]
    assert election.handle_input(ClientsAsked("b", True), SILENT_MS) == []
    assert election.handle_input(COMPLAINT, SILENT_MS) == [], "each complaint counts once"
    again = LookDone(ReadProgress(), complaints=(("a", (0, 9)), ("c", (5, 1)), ("b", (0, 2))))
    assert election.handle_input(again, SILENT_MS) == [Output(Act.ASK_CLIENTS, "b")]
    assert election.handle_input(ClientsAsked("b", False), SILENT_MS)[-1] == Output(Act.HAND_OVER, "b")


def epoch(number: int, member: Member, holder: bytes) -> RecordTaken:
    body = encode_facts(member._asdict())
    record = SharedRecord(CLUSTER, Kind.EPOCH, number, holder, 0, CHAIN_AT_GENESIS, body)
    return RecordTaken(Step(Outcome.NEW_EPOCH, record))


def beat(number: int, holder: bytes, facts: dict[str, Any]) -> RecordTaken:
    record = SharedRecord(CLUSTER, Kind.BEAT, number, holder, 0, CHAIN_AT_GENESIS, encode_facts(facts))
    return RecordTaken(Step(Outcome.ALIVE, record))


HOLDER = bytes(15) + b"b"
INPUTS: list[Input] = [
    *(OPENED, Opened(3, OTHER._asdict()), read(), read(1), read(is_founded=False), read(is_listed=True)),
    *(read(foreign=3), read(unfit="its clock is off"), Appended(CANDIDACY), Appended(None)),
    *(Confirmed(True), Confirmed(False), Confirmed(None), Begun(0), HeartbeatDone(5), COMPLAINT, Ended()),
    *(LookDone(ReadProgress()), LookDone(ReadProgress(0, 1, 1), True, None, "its clock is off", "b")),
    *(ClientsAsked("b", True), ClientsAsked("b", False), CopiesFound(0, {})),
    *(CopiesFound(4, OTHER._asdict()), Copied("node b"), epoch(2, OTHER, HOLDER), epoch(2, ME, HOLDER)),
    *(beat(2, HOLDER, {}), beat(2, HOLDER, {"leaves": True, "to": "a"}), beat(2, HOLDER, {"leaves": True})),
    *(beat(2, HOLDER, {"certificate": "new"}), Tick(), Tick(9, {"certificate": "new"}), ProofWanted()),
    *(SteppedDown(NotAccepted("no")), Move(""), Move("b"), Order({"forget": "c"}), Leave()),
    *(
        failed(act, error)
        for act in (*AWAITED_ACTS, Act.LOOK)
        for error in (
            *(AWAY, Refused("first"), NoCluster("gone"), TRIMMED, Halted("two")),
            *(StoreDamaged("a hole"), DISK, CopyRefused("no"), TooOld("old"), DuplicateNodeName("a")),
        )
    ),
]
MOST_INPUTS = [one for one in INPUTS if not isinstance(one, Leave)]


@pytest.mark.parametrize("stage", Stage, ids=lambda one: one.name)
def test_an_answer_that_is_not_awaited_is_dropped(stage: Stage) -> None:
    for one in INPUTS:
        election, _ = play(REACH[stage])
        before = election.takeovers, election.leadership.epoch, election.copying, election.answers.refusal
        done = election.handle_input(one, SILENT_MS)
        awaited = AWAITED.get(type(one), Stage)
        if isinstance(one, Failed) and one.act is not Act.LOOK:
            awaited = AWAITED_ACTS[one.act]
        if stage not in awaited:
            assert not done, (stage, one)
            after = election.takeovers, election.leadership.epoch, election.copying, election.answers.refusal
            assert (election.stage, after) == (stage, before)


@settings(max_examples=300, deadline=None)
@given(
    some.sampled_from(sorted(REACH, key=lambda one: one.name)),
    some.lists(some.tuples(some.sampled_from(INPUTS), some.integers(0, 4_000)), max_size=40),
)
def test_whatever_comes_in_whatever_order_is_taken(begin: Stage, sequence: list[tuple[Input, int]]) -> None:
    election, outputs = play(REACH[begin])
    now_ms, has_won = SILENT_MS, begin in (Stage.STARTING, Stage.LEADING)
    halts = any(one.act is Act.HALT for each in outputs for one in each)
    for one, passed_ms in sequence:
        before = election.stage
        outputs_of_one = election.handle_input(one, now_ms := now_ms + passed_ms)
        done = acts(outputs_of_one)
        assert not halts or outputs_of_one in ([], [Output(Act.END)]), "a halted node does something"
        halts |= Act.HALT in done
        assert not (halts and election.role is not Role.HALTED and election.stage is not Stage.LEFT)
        if Act.SERVE in done:
            assert before is Stage.CONFIRMING
            assert one == Confirmed(True), "a node leads that has not won"
        has_won = Act.SERVE in done or (has_won and election.role in (Role.STANDING, Role.LEADING))
        assert election.role is not Role.LEADING or has_won
        assert before is not Stage.LEFT or not done, "a node that has left does something"
        moved = election.stage is not before
        assert not moved or (done and election.stage is not Stage.OPENING) or Act.OPEN in done


@settings(max_examples=200, deadline=None)
@given(some.lists(some.tuples(some.sampled_from(MOST_INPUTS), some.integers(0, 4_000)), max_size=40))
def test_a_node_that_is_not_to_end_always_has_something_under_way(sequence: list[tuple[Input, int]]) -> None:
    """In each stage an act, or a WAIT: no input lets a node stand still."""
    election, _ = play([])
    now_ms, under_way = EARLY_MS, Act.OPEN
    for one, passed_ms in sequence:
        before, now_ms = election.stage, now_ms + passed_ms
        done = [act for act in acts(election.handle_input(one, now_ms)) if act not in BESIDE]
        assert len(done) <= 1, "two acts at once"
        under_way = done[0] if done else under_way
        assert done or election.stage is before, "a stage without an act"
    assert (under_way is Act.WAIT) is (election.stage in {*WAITING, Stage.LEADING} - {Stage.HALTED})


class Toy:
    """A shared log of EPOCHs that accepts all that comes, and machines whose acts are answered one by one."""

    def __init__(self, names: str) -> None:
        self.log: list[tuple[int, int]] = []
        """(machine, epoch) of each EPOCH."""
        self.machines = [Election(Member(one, one, one), 0, draw()) for one in names]
        self.acts = [machine.begin()[0] for machine in self.machines]
        self.read = [0 for _ in names]
        self.newest: list[tuple[int, int | None]] = [(0, None) for _ in names]
        """(epoch, machine that holds it), as each has folded it."""
        self.leaders: dict[int, set[int]] = {}
        self.now_ms = 0

    def fold(self, at: int) -> int:
        """Let a machine read an EPOCH, if there is one; return how many it has read."""
        if self.read[at] == len(self.log):
            return 0
        who, number = self.log[self.read[at]]
        self.read[at] += 1
        if number == self.newest[at][0] + 1:
            self.newest[at] = number, who
            self.take(at, epoch(number, self.machines[who].me, HOLDER))
        return 1

    def confirm(self, at: int) -> Input:
        """Let a machine read on; behind its EPOCH, answer whether that is the newest."""
        _, offset = self.acts[at].argument
        self.fold(at)
        return Confirmed(None if self.read[at] <= offset else self.newest[at][1] == at)

    def step(self, at: int, fails: bool, passed_ms: int) -> None:
        """Answer what a machine waits for, or let it fail."""
        self.now_ms += passed_ms
        self.take(at, self.answer(at, fails))
        machine = self.machines[at]
        if machine.stage is Stage.LEADING:
            self.leaders.setdefault(self.newest[at][0], set()).add(at)

    def take(self, at: int, one: Input) -> None:
        """Give a machine an input; keep what it does then."""
        done = [each for each in self.machines[at].handle_input(one, self.now_ms) if each.act is not Act.SAY]
        kept = [each for each in done if each.act not in BESIDE]
        self.acts[at] = kept[-1] if kept else self.acts[at]

    def answer(self, at: int, fails: bool) -> Input:
        act = self.acts[at].act
        if act is Act.APPEND_EPOCH:
            self.log.append((at, self.newest[at][0] + 1))
            offset = len(self.log) - 1
            return failed(act, Unknown("late")) if fails else Appended((None, offset))
        if act is Act.WAIT and self.machines[at].stage is Stage.LEADING and fails:
            return SteppedDown(NotAccepted("another leads"))
        if fails and act in (Act.READ, Act.CATCH_UP, Act.HAND_OVER):
            return failed(act, DISK if act is Act.HAND_OVER else AWAY)
        answers: dict[Act, Callable[[], Input]] = {
            Act.OPEN: lambda: OPENED,
            Act.READ: lambda: read(self.fold(at)),
            Act.CATCH_UP: lambda: read(self.fold(at)),
            Act.CONFIRM: lambda: self.confirm(at),
            Act.SERVE: lambda: Begun(self.now_ms),
            Act.HAND_OVER: Ended,
            Act.WAIT: Tick,
        }
        return answers[act]()


@settings(max_examples=300, deadline=None)
@given(
    some.lists(
        some.tuples(some.integers(0, 2), some.sampled_from([False] * 5 + [True]), some.integers(0, 900)),
        min_size=30,
        max_size=300,
    )
)
def test_two_nodes_never_lead_by_one_right(steps: list[tuple[int, bool, int]]) -> None:
    toy = Toy("abc")
    for at, fails, passed_ms in steps:
        toy.step(at, fails, passed_ms)
    assert all(len(who) == 1 for who in toy.leaders.values()), toy.leaders


def test_each_of_three_nodes_comes_to_lead_when_the_one_before_steps_down() -> None:
    toy = Toy("abc")
    for turn in range(3_000):
        leads = next((at for at, one in enumerate(toy.machines) if one.stage is Stage.LEADING), None)
        toy.step(turn % 3, turn % 3 == leads and turn % 5 == 0, 40)
    assert len(toy.leaders) > 3
    assert all(len(who) == 1 for who in toy.leaders.values())


WHERE = Unreadable(7, 700, "Record 7 is missing.")
BROKEN = LogDamaged("Record 7 is missing.", 7)


def outputs_of(*inputs: At) -> tuple[Election, list[Output]]:
    """Give inputs to an election; return it, and what it says to the last one."""
    election, outputs = Election(ME, 0, lambda: b"h"), []
    for one, now_ms in inputs:
        assert not callable(one)
        outputs = election.handle_input(one, now_ms)
    return election, outputs


@pytest.mark.parametrize(
    "inputs",
    [
        [*READING, *early(Failed(Act.READ, BROKEN, "", WHERE))],
        [*CATCHING_UP, *late(Failed(Act.CATCH_UP, BROKEN, "", WHERE))],
        [*READING, *early(Failed(Act.LOOK, BROKEN, "", WHERE), read())],
        [*LEADING, *late(Failed(Act.LOOK, BROKEN, "", WHERE), Ended())],
    ],
)
def test_at_a_broken_record_a_node_needs_a_copy_beyond_it(inputs: list[At]) -> None:
    election, outputs = outputs_of(*inputs)
    assert outputs[-1] == Output(Act.COPY, WHERE)
    assert (election.stage, election.copying) == (Stage.COPYING, str(BROKEN))


def test_a_broken_record_among_those_that_tell_of_copies_halts_a_node() -> None:
    election, _ = outputs_of(*READING, *early(Failed(Act.READ, BROKEN, "", WHERE), Failed(Act.COPY, BROKEN)))
    assert election.stage is Stage.HALTED


def test_of_another_failure_the_broken_record_is_of_the_past() -> None:
    copied = early(Failed(Act.READ, BROKEN, "", WHERE), Copied("node b"), OPENED)
    election, outputs = outputs_of(*READING, *copied, (Failed(Act.READ, TRIMMED), EARLY_MS + 60_000))
    assert outputs[-1] == Output(Act.COPY, None)
    again, _ = outputs_of(*READING, *copied, *early(Failed(Act.READ, Halted("two histories"))))
    assert (election.stage, again.stage) == (Stage.COPYING, Stage.HALTED)
