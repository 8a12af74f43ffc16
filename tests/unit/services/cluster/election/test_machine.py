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
from services.cluster.election.candidacy_timer import HEARTBEAT_MS, LEADER_TIMEOUT_MS
from services.cluster.election.inputs import (
    FAILURE_STAGES,
    INPUT_STAGES,
    ActionFailed,
    BeatRequest,
    ClientProbeCompleted,
    CopiesFound,
    CopyFetched,
    CoreReleased,
    EpochAppended,
    EpochConfirmed,
    HealthCheckCompleted,
    HeartbeatAppended,
    Input,
    LeadershipEnded,
    LeadershipGained,
    LeadershipTransferRequested,
    ProofRequested,
    ReadCompleted,
    ReadProgress,
    RecordApplied,
    ReplicaOpened,
    ShutdownRequested,
    Tick,
)
from services.cluster.election.machine import Election
from services.cluster.election.table import (
    CONCURRENT_ACTIONS,
    STAGE_ROLES,
    TRANSITIONS,
    WAIT_SECONDS,
    WAITING_STAGES,
    ActionType,
    Event,
    Output,
    Role,
    Stage,
    Wait,
)
from services.cluster.errors import CopyRefused, DuplicateNodeName
from services.cluster.identity import Member
from services.cluster.node import is_history_lost
from sharedlog.errors import (
    EngineRefused,
    EngineUnavailable,
    Halted,
    LogDamaged,
    LogTrimmed,
    NoCluster,
    NotAccepted,
    VersionUnsupported,
)
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
) -> ReadCompleted:
    return ReadCompleted(records, ReadProgress(0, 1, foreign), is_founded, is_listed, unfit)


def early(*inputs: Any) -> list[At]:
    return [(one, EARLY_MS) for one in inputs]


def late(*inputs: Any) -> list[At]:
    return [(one, SILENT_MS) for one in inputs]


def calls_fail(election: Election) -> None:
    """Let clients call for a while, and the leader not answer."""
    election.reachability.record_failure(election.leadership.epoch, SILENT_MS - 5_000, SILENT_MS)


def failed(action: ActionType, error: Exception) -> ActionFailed:
    return ActionFailed(action, error)


OPENED = ReplicaOpened(0, {})
TRIMMED, AWAY, DISK = LogTrimmed("gone"), EngineUnavailable("away"), OSError("disk")
CANDIDACY = object(), 7
READING = early(OPENED)
CATCHING_UP = [*READING, *late(read())]
LEADING = [
    *CATCHING_UP,
    *late(read(), EpochAppended(CANDIDACY), EpochConfirmed(True), LeadershipGained(SILENT_MS)),
]
COPYING = early(failed(ActionType.OPEN_REPLICA, TRIMMED))
REACH: dict[Stage, list[At]] = {
    Stage.OPENING: [],
    Stage.REOPENING: early(failed(ActionType.OPEN_REPLICA, DISK)),
    Stage.READING: READING,
    Stage.IDLE: [*READING, *early(read())],
    Stage.CATCHING_UP: CATCHING_UP,
    Stage.APPENDING: LEADING[:3],
    Stage.CONFIRMING: LEADING[:4],
    Stage.STARTING: LEADING[:5],
    Stage.LEADING: LEADING,
    Stage.HANDING_OVER: [*LEADING, *late(LeadershipTransferRequested("b"))],
    Stage.COPYING: COPYING,
    Stage.COPY_PAUSED: [*COPYING, *early(failed(ActionType.FETCH_COPY, AWAY))],
    Stage.HALTED: early(failed(ActionType.OPEN_REPLICA, Halted("two histories"))),
    Stage.LEFT: early(failed(ActionType.OPEN_REPLICA, DISK), ShutdownRequested()),
}
ACT_OF = {row.stage: row.action for row in TRANSITIONS.values()}
"""The act that is under way in a stage."""
COPIED_JUST_NOW = [*COPYING, *early(CopiesFound(0, {}), CopyFetched("node b"))]
COMPLAINT = HealthCheckCompleted(ReadProgress(), complaints=(("b", (0, 1)),))
ERRORS: dict[Event, Exception] = {
    Event.COPY_NEEDED: StoreDamaged("a hole"),
    Event.COPY_UNAVAILABLE: StoreDamaged("a hole"),
    Event.REPLICA_UNUSABLE: DISK,
    Event.HALT_REQUIRED: Halted("two histories"),
}
TRIGGERS: dict[Event, list[At]] = {
    Event.REPLICA_OPENED: early(OPENED),
    Event.MORE_RECORDS: early(read(1)),
    Event.CAUGHT_UP: early(read()),
    Event.ENGINE_UNRESPONSIVE: early(failed(ActionType.READ_LOG, AWAY)),
    Event.LEADER_SILENT: late(read()),
    Event.LOG_END_REACHED: late(read()),
    Event.EPOCH_APPENDED: late(EpochAppended(CANDIDACY)),
    Event.ELECTION_WON: late(EpochConfirmed(True)),
    Event.LEADERSHIP_GAINED: late(LeadershipGained(SILENT_MS)),
    Event.LEADERSHIP_RELINQUISHED: late(LeadershipTransferRequested("b")),
    Event.LEADERSHIP_ENDED: late(LeadershipEnded()),
    Event.COPY_FETCHED: early(CopyFetched("node b")),
    Event.TICK: early(Tick()),
    Event.SHUTDOWN_REQUESTED: early(ShutdownRequested()),
}
SPECIAL: dict[tuple[Stage, Event], list[At]] = {
    (Stage.CONFIRMING, Event.MORE_RECORDS): late(EpochConfirmed(None)),
    (Stage.CATCHING_UP, Event.ELECTION_LOST): late(read(is_founded=False)),
    (Stage.APPENDING, Event.ELECTION_LOST): late(EpochAppended(None)),
    (Stage.CONFIRMING, Event.ELECTION_LOST): [(EpochConfirmed(None), SILENT_MS + 3_000)],
    (Stage.COPYING, Event.COPY_UNAVAILABLE): early(failed(ActionType.FETCH_COPY, CopyRefused("no"))),
}
ANOTHER_WAY: dict[tuple[Stage, Event], list[At]] = {
    (Stage.HANDING_OVER, event): [
        *(COPIED_JUST_NOW if event is Event.COPY_UNAVAILABLE else []),
        *(*LEADING, *late(failed(ActionType.CHECK_HEALTH, error), LeadershipEnded())),
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
    assert election.begin() == [Output(ActionType.OPEN_REPLICA)]
    for one, now_ms in inputs:
        if isinstance(one, tuple):
            outputs.append(election.handle_input(one, now_ms))
        else:
            one(election)
    return election, outputs


def actions(outputs: list[Output]) -> list[ActionType]:
    return [one.action for one in outputs if one.action is not ActionType.WRITE_LOG_LINE]


def lines(outputs: list[list[Output]]) -> list[str]:
    return [one.argument.event for each in outputs for one in each if one.action is ActionType.WRITE_LOG_LINE]


def way_to(row: tuple[Stage, Event]) -> list[At]:
    stage, event = row
    if row in ANOTHER_WAY:
        return ANOTHER_WAY[row]
    if row in SPECIAL:
        return [*REACH[stage], *SPECIAL[row]]
    if event in ERRORS:
        before = COPIED_JUST_NOW if event is Event.COPY_UNAVAILABLE else []
        return [*before, *REACH[stage], *late(failed(ACT_OF[stage], ERRORS[event]))]
    return [*REACH[stage], *TRIGGERS[event]]


@pytest.mark.parametrize("stage", Stage, ids=lambda one: one.name)
def test_each_stage_is_reached(stage: Stage) -> None:
    election, _ = play(REACH[stage])
    assert election.stage is stage
    if stage is not Stage.LEFT:
        assert election.role is STAGE_ROLES[stage]


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda one: str(one))
def test_each_row_follows_from_inputs(row: tuple[Stage, Event]) -> None:
    inputs = way_to(row)
    before, _ = play(inputs[:-1])
    assert before.stage is row[0]
    after, outputs = play(inputs)
    to = TRANSITIONS[row]
    assert after.stage is to.stage
    assert to.action in actions(outputs[-1])
    if to.wait is not None:
        assert Output(ActionType.WAIT, WAIT_SECONDS[to.wait]) in outputs[-1]


def test_an_engine_that_does_not_answer_is_no_silence_and_said_once() -> None:
    away = early(failed(ActionType.READ_LOG, AWAY), Tick(), failed(ActionType.READ_LOG, AWAY), Tick())
    election, outputs = play([*READING, *away])
    assert election.answers.refusal.endswith("away")
    assert lines(outputs).count("the shared log does not answer: it is asked again") == 1
    said = election.handle_input(read(1), EARLY_MS + 70)
    assert said[0].argument.facts == {"after_ms": 70}
    assert election.answers.refusal == ""
    election.handle_input(failed(ActionType.READ_LOG, AWAY), SILENT_MS)
    election.handle_input(Tick(), SILENT_MS)
    assert actions(election.handle_input(read(), SILENT_MS + LEADER_TIMEOUT_MS - 1)) == [ActionType.WAIT]
    election.handle_input(Tick(), SILENT_MS)
    assert ActionType.CATCH_UP in actions(election.handle_input(read(), SILENT_MS + LEADER_TIMEOUT_MS))
    assert election.role is Role.STANDING


@pytest.mark.parametrize(
    ("error", "is_history"),
    [
        (Halted("two"), True),
        (NoCluster("gone"), True),
        (VersionUnsupported("old"), False),
        (DuplicateNodeName("two a"), False),
    ],
)
def test_a_node_that_halts_says_why_and_what_to_do(error: Exception, is_history: bool) -> None:
    election, outputs = play(
        [
            *READING,
            *early(ActionFailed(ActionType.READ_LOG, error, AFTER_HALT if is_history_lost(error) else "")),
        ]
    )
    assert (election.stage, actions(outputs[-1])) == (Stage.HALTED, [ActionType.HALT])
    assert ("tidewheel cluster restore" in election.halted) is is_history
    assert actions(election.handle_input(ShutdownRequested(), SILENT_MS)) == [ActionType.END_PROCESS]


def test_a_leader_hands_over_first_and_then_leaves() -> None:
    election, outputs = play([*LEADING, *late(ShutdownRequested(), LeadershipEnded())])
    assert outputs[-2][-1] == Output(ActionType.HAND_OVER, "")
    assert (actions(outputs[-1]), election.stage, election.role) == (
        [ActionType.END_PROCESS],
        Stage.LEFT,
        Role.OPENING,
    )


@pytest.mark.parametrize(
    ("error", "looked", "stage", "action"),
    [
        (NoRoom("full"), None, Stage.REOPENING, ActionType.WAIT),
        (DISK, None, Stage.REOPENING, ActionType.WAIT),
        (NoRoom("full"), StoreDamaged("a hole"), Stage.COPYING, ActionType.FETCH_COPY),
    ],
)
def test_a_leader_whose_disk_fails_as_it_hands_over_opens_its_copy_again_or_gets_another(
    error: Exception, looked: Exception | None, stage: Stage, action: ActionType
) -> None:
    over = LeadershipTransferRequested("b") if looked is None else failed(ActionType.CHECK_HEALTH, looked)
    election, outputs = play([*LEADING, *late(over, failed(ActionType.HAND_OVER, error))])
    assert (election.stage, actions(outputs[-1])[-1]) == (stage, action)
    election, outputs = play(
        [*LEADING, *late(over, ShutdownRequested(), failed(ActionType.HAND_OVER, error))]
    )
    assert (election.stage, actions(outputs[-1])[-1]) == (Stage.LEFT, ActionType.END_PROCESS)


@pytest.mark.parametrize("stage", [Stage.APPENDING, Stage.CONFIRMING, Stage.STARTING])
def test_a_candidate_that_is_to_leave_goes_on_until_it_holds_no_right(stage: Stage) -> None:
    at = len(REACH[stage])
    inputs = [*LEADING[:at], *late(ShutdownRequested()), *LEADING[at:]]
    election, outputs = play(inputs)
    assert (election.stage, actions(outputs[-1])[-1]) == (Stage.HANDING_OVER, ActionType.HAND_OVER)


def test_a_leader_that_steps_down_while_it_starts_ends_its_lead_at_once() -> None:
    starting = REACH[Stage.STARTING]
    election, outputs = play([*starting, *late(CoreReleased(NotAccepted("no")), *[LEADING[-1][0]])])
    assert election.stage is Stage.HANDING_OVER
    assert "stepped down" in lines(outputs)
    assert actions(election.handle_input(LeadershipEnded(), SILENT_MS)) == [ActionType.OPEN_REPLICA]


def test_one_beat_is_under_way_at_a_time_and_orders_go_first() -> None:
    election, _ = play(LEADING)
    first, second = BeatRequest({"forget": "c"}, "first"), BeatRequest({"finalize": 2}, "second")
    assert election.handle_input(first, SILENT_MS) == [Output(ActionType.APPEND_BEAT, first)]
    assert election.handle_input(ProofRequested(), SILENT_MS) == []
    assert election.handle_input(second, SILENT_MS) == []
    assert election.handle_input(HeartbeatAppended(SILENT_MS), SILENT_MS) == [
        Output(ActionType.APPEND_BEAT, second)
    ]
    assert election.handle_input(HeartbeatAppended(SILENT_MS), SILENT_MS) == []
    assert election.handle_input(Tick(SILENT_MS), SILENT_MS + HEARTBEAT_MS - 1) == [
        Output(ActionType.WAIT, WAIT_SECONDS[Wait.BEAT])
    ]
    beats = election.handle_input(Tick(SILENT_MS), SILENT_MS + HEARTBEAT_MS)
    assert beats == [
        Output(ActionType.WAIT, WAIT_SECONDS[Wait.BEAT]),
        Output(ActionType.APPEND_BEAT, BeatRequest({})),
    ]
    changed_facts = election.handle_input(HeartbeatAppended(SILENT_MS, {"certificate": "new"}), SILENT_MS)
    assert changed_facts == [Output(ActionType.APPEND_BEAT, BeatRequest({"certificate": "new"}))]


def test_a_follower_complains_once_it_is_listed_and_has_read_all() -> None:
    election, _ = play([*READING, *early(read(1, is_listed=True), read(), calls_fail, Tick())])
    assert ActionType.APPEND_COMPLAINT not in actions(election.handle_input(read(1), SILENT_MS))
    assert Output(ActionType.APPEND_COMPLAINT, (0, 1)) in election.handle_input(
        read(1, is_listed=True), SILENT_MS
    )
    assert ActionType.APPEND_COMPLAINT not in actions(
        election.handle_input(read(1, is_listed=True), SILENT_MS)
    )


def test_a_node_checks_the_past_when_it_has_opened_and_when_another_was_first() -> None:
    _, outputs = play(
        [*CATCHING_UP, *late(read(), failed(ActionType.APPEND_EPOCH, EngineRefused("first")), Tick())]
    )
    assert outputs[0][-1] == Output(ActionType.READ_LOG, True)
    assert outputs[-1][-1] == Output(ActionType.READ_LOG, True)
    _, outputs = play([*READING, *early(read(1))])
    assert outputs[-1][-1] == Output(ActionType.READ_LOG, False)


def test_an_unfit_leader_hands_over_to_a_fit_node_and_not_again_at_once() -> None:
    look = HealthCheckCompleted(ReadProgress(), True, None, "its clock is off", "b")
    election, outputs = play([*LEADING, *late(look)])
    assert outputs[-1][-1] == Output(ActionType.HAND_OVER, "b")
    for one, now_ms in [(LeadershipEnded(), SILENT_MS), *[(one, now) for one, now in LEADING]]:
        election.handle_input(one, now_ms)  # type: ignore[arg-type]  # the list holds inputs of all types
    election.handle_input(HealthCheckCompleted(ReadProgress(), True, None, "its clock is off"), SILENT_MS)
    assert election.stage is not Stage.HANDING_OVER
    if election.stage is Stage.LEADING:
        assert actions(election.handle_input(look, SILENT_MS + health.HAND_OVER_AGAIN_MS - 1)) == []
        assert ActionType.HAND_OVER in actions(
            election.handle_input(look, SILENT_MS + health.HAND_OVER_AGAIN_MS)
        )


def test_a_leader_that_no_client_answers_leaves_to_the_node_that_complains() -> None:
    election, outputs = play([*LEADING, *late(COMPLAINT)])
    assert outputs[-1] == [Output(ActionType.PROBE_CLIENTS, "b")]
    assert election.handle_input(ClientProbeCompleted("b", True), SILENT_MS) == []
    assert election.handle_input(COMPLAINT, SILENT_MS) == [], "each complaint counts once"
    again = HealthCheckCompleted(ReadProgress(), complaints=(("a", (0, 9)), ("c", (5, 1)), ("b", (0, 2))))
    assert election.handle_input(again, SILENT_MS) == [Output(ActionType.PROBE_CLIENTS, "b")]
    assert election.handle_input(ClientProbeCompleted("b", False), SILENT_MS)[-1] == Output(
        ActionType.HAND_OVER, "b"
    )


def epoch(number: int, member: Member, holder: bytes) -> RecordApplied:
    body = encode_facts(member._asdict())
    record = SharedRecord(CLUSTER, Kind.EPOCH, number, holder, 0, CHAIN_AT_GENESIS, body)
    return RecordApplied(Step(Outcome.NEW_EPOCH, record))


def beat(number: int, holder: bytes, facts: dict[str, Any]) -> RecordApplied:
    record = SharedRecord(CLUSTER, Kind.BEAT, number, holder, 0, CHAIN_AT_GENESIS, encode_facts(facts))
    return RecordApplied(Step(Outcome.ALIVE, record))


HOLDER = bytes(15) + b"b"
INPUTS: list[Input] = [
    *(
        OPENED,
        ReplicaOpened(3, OTHER._asdict()),
        read(),
        read(1),
        read(is_founded=False),
        read(is_listed=True),
    ),
    *(read(foreign=3), read(unfit="its clock is off"), EpochAppended(CANDIDACY), EpochAppended(None)),
    *(
        EpochConfirmed(True),
        EpochConfirmed(False),
        EpochConfirmed(None),
        LeadershipGained(0),
        HeartbeatAppended(5),
        COMPLAINT,
        LeadershipEnded(),
    ),
    *(
        HealthCheckCompleted(ReadProgress()),
        HealthCheckCompleted(ReadProgress(0, 1, 1), True, None, "its clock is off", "b"),
    ),
    *(ClientProbeCompleted("b", True), ClientProbeCompleted("b", False), CopiesFound(0, {})),
    *(CopiesFound(4, OTHER._asdict()), CopyFetched("node b"), epoch(2, OTHER, HOLDER), epoch(2, ME, HOLDER)),
    *(beat(2, HOLDER, {}), beat(2, HOLDER, {"leaves": True, "to": "a"}), beat(2, HOLDER, {"leaves": True})),
    *(beat(2, HOLDER, {"certificate": "new"}), Tick(), Tick(9, {"certificate": "new"}), ProofRequested()),
    *(
        CoreReleased(NotAccepted("no")),
        LeadershipTransferRequested(""),
        LeadershipTransferRequested("b"),
        BeatRequest({"forget": "c"}),
        ShutdownRequested(),
    ),
    *(
        failed(action, error)
        for action in (*FAILURE_STAGES, ActionType.CHECK_HEALTH)
        for error in (
            *(AWAY, EngineRefused("first"), NoCluster("gone"), TRIMMED, Halted("two")),
            *(
                StoreDamaged("a hole"),
                DISK,
                CopyRefused("no"),
                VersionUnsupported("old"),
                DuplicateNodeName("a"),
            ),
        )
    ),
]
MOST_INPUTS = [one for one in INPUTS if not isinstance(one, ShutdownRequested)]


@pytest.mark.parametrize("stage", Stage, ids=lambda one: one.name)
def test_an_answer_that_is_not_awaited_is_dropped(stage: Stage) -> None:
    for one in INPUTS:
        election, _ = play(REACH[stage])
        before = election.takeovers, election.leadership.epoch, election.copying, election.answers.refusal
        done = election.handle_input(one, SILENT_MS)
        awaited = INPUT_STAGES.get(type(one), Stage)
        if isinstance(one, ActionFailed) and one.action is not ActionType.CHECK_HEALTH:
            awaited = FAILURE_STAGES[one.action]
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
    halts = any(one.action is ActionType.HALT for each in outputs for one in each)
    for one, passed_ms in sequence:
        before = election.stage
        outputs_of_one = election.handle_input(one, now_ms := now_ms + passed_ms)
        done = actions(outputs_of_one)
        assert not halts or outputs_of_one in ([], [Output(ActionType.END_PROCESS)]), (
            "a halted node does something"
        )
        halts |= ActionType.HALT in done
        assert not (halts and election.role is not Role.HALTED and election.stage is not Stage.LEFT)
        if ActionType.SERVE_CLIENTS in done:
            assert before is Stage.CONFIRMING
            assert one == EpochConfirmed(True), "a node leads that has not won"
        has_won = ActionType.SERVE_CLIENTS in done or (
            has_won and election.role in (Role.STANDING, Role.LEADING)
        )
        assert election.role is not Role.LEADING or has_won
        assert before is not Stage.LEFT or not done, "a node that has left does something"
        moved = election.stage is not before
        assert not moved or (done and election.stage is not Stage.OPENING) or ActionType.OPEN_REPLICA in done


@settings(max_examples=200, deadline=None)
@given(some.lists(some.tuples(some.sampled_from(MOST_INPUTS), some.integers(0, 4_000)), max_size=40))
def test_a_node_that_is_not_to_end_always_has_something_under_way(sequence: list[tuple[Input, int]]) -> None:
    """In each stage an act, or a WAIT: no input lets a node stand still."""
    election, _ = play([])
    now_ms, under_way = EARLY_MS, ActionType.OPEN_REPLICA
    for one, passed_ms in sequence:
        before, now_ms = election.stage, now_ms + passed_ms
        done = [
            action
            for action in actions(election.handle_input(one, now_ms))
            if action not in CONCURRENT_ACTIONS
        ]
        assert len(done) <= 1, "two acts at once"
        under_way = done[0] if done else under_way
        assert done or election.stage is before, "a stage without an act"
    assert (under_way is ActionType.WAIT) is (
        election.stage in {*WAITING_STAGES, Stage.LEADING} - {Stage.HALTED}
    )


class Toy:
    """A shared log of EPOCHs that accepts all that comes, and machines whose acts are answered one by one."""

    def __init__(self, names: str) -> None:
        self.log: list[tuple[int, int]] = []
        """(machine, epoch) of each EPOCH."""
        self.machines = [Election(Member(one, one, one), 0, draw()) for one in names]
        self.actions = [machine.begin()[0] for machine in self.machines]
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
            self.apply_record(at, epoch(number, self.machines[who].me, HOLDER))
        return 1

    def confirm(self, at: int) -> Input:
        """Let a machine read on; behind its EPOCH, answer whether that is the newest."""
        _, offset = self.actions[at].argument
        self.fold(at)
        return EpochConfirmed(None if self.read[at] <= offset else self.newest[at][1] == at)

    def step(self, at: int, fails: bool, passed_ms: int) -> None:
        """Answer what a machine waits for, or let it fail."""
        self.now_ms += passed_ms
        self.apply_record(at, self.answer(at, fails))
        machine = self.machines[at]
        if machine.stage is Stage.LEADING:
            self.leaders.setdefault(self.newest[at][0], set()).add(at)

    def apply_record(self, at: int, one: Input) -> None:
        """Give a machine an input; keep what it does then."""
        done = [
            each
            for each in self.machines[at].handle_input(one, self.now_ms)
            if each.action is not ActionType.WRITE_LOG_LINE
        ]
        kept = [each for each in done if each.action not in CONCURRENT_ACTIONS]
        self.actions[at] = kept[-1] if kept else self.actions[at]

    def answer(self, at: int, fails: bool) -> Input:
        action = self.actions[at].action
        if action is ActionType.APPEND_EPOCH:
            self.log.append((at, self.newest[at][0] + 1))
            offset = len(self.log) - 1
            return failed(action, EngineUnavailable("late")) if fails else EpochAppended((None, offset))
        if action is ActionType.WAIT and self.machines[at].stage is Stage.LEADING and fails:
            return CoreReleased(NotAccepted("another leads"))
        if fails and action in (ActionType.READ_LOG, ActionType.CATCH_UP, ActionType.HAND_OVER):
            return failed(action, DISK if action is ActionType.HAND_OVER else AWAY)
        answers: dict[ActionType, Callable[[], Input]] = {
            ActionType.OPEN_REPLICA: lambda: OPENED,
            ActionType.READ_LOG: lambda: read(self.fold(at)),
            ActionType.CATCH_UP: lambda: read(self.fold(at)),
            ActionType.CONFIRM_EPOCH: lambda: self.confirm(at),
            ActionType.SERVE_CLIENTS: lambda: LeadershipGained(self.now_ms),
            ActionType.HAND_OVER: LeadershipEnded,
            ActionType.WAIT: Tick,
        }
        return answers[action]()


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
        [*READING, *early(ActionFailed(ActionType.READ_LOG, BROKEN, "", WHERE))],
        [*CATCHING_UP, *late(ActionFailed(ActionType.CATCH_UP, BROKEN, "", WHERE))],
        [*READING, *early(ActionFailed(ActionType.CHECK_HEALTH, BROKEN, "", WHERE), read())],
        [*LEADING, *late(ActionFailed(ActionType.CHECK_HEALTH, BROKEN, "", WHERE), LeadershipEnded())],
    ],
)
def test_at_a_broken_record_a_node_needs_a_copy_beyond_it(inputs: list[At]) -> None:
    election, outputs = outputs_of(*inputs)
    assert outputs[-1] == Output(ActionType.FETCH_COPY, WHERE)
    assert (election.stage, election.copying) == (Stage.COPYING, str(BROKEN))


def test_a_broken_record_among_those_that_tell_of_copies_halts_a_node() -> None:
    election, _ = outputs_of(
        *READING,
        *early(
            ActionFailed(ActionType.READ_LOG, BROKEN, "", WHERE), ActionFailed(ActionType.FETCH_COPY, BROKEN)
        ),
    )
    assert election.stage is Stage.HALTED


def test_of_another_failure_the_broken_record_is_of_the_past() -> None:
    copied = early(ActionFailed(ActionType.READ_LOG, BROKEN, "", WHERE), CopyFetched("node b"), OPENED)
    election, outputs = outputs_of(
        *READING, *copied, (ActionFailed(ActionType.READ_LOG, TRIMMED), EARLY_MS + 60_000)
    )
    assert outputs[-1] == Output(ActionType.FETCH_COPY, None)
    again, _ = outputs_of(
        *READING, *copied, *early(ActionFailed(ActionType.READ_LOG, Halted("two histories")))
    )
    assert (election.stage, again.stage) == (Stage.COPYING, Stage.HALTED)
