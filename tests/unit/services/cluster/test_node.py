"""What a node tells of itself while it opens its copy again."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from commitlog.errors import NoRoom
from commitlog.records.message import Message
from services.broker.spine.settings import BrokerSettings
from services.cluster import replica
from services.cluster.election import candidacy_timer, inputs
from services.cluster.election import table as election_table
from services.cluster.election.health import Health
from services.cluster.election.inputs import RecordApplied
from services.cluster.election.lag_and_skew import LagAndSkew
from services.cluster.election.table import ActionType, Output, Role
from services.cluster.identity import Member
from services.cluster.leading import followers
from services.cluster.leading.leader_term import LeaderCallbacks, LeaderTerm
from services.cluster.leading.log_damage import LogDamage
from services.cluster.metrics import ClusterMetrics
from services.cluster.node import ClusterNode
from services.cluster.node_actions import Clocks, NodeActions
from services.cluster.peers import Identity
from services.cluster.replica import Replica
from services.cluster.status import status_of
from services.live.durability import Answers, LeadershipProofs
from sharedlog import witness
from sharedlog.engine import Head, Stored
from sharedlog.engines import Beginning
from sharedlog.errors import EngineUnavailable
from sharedlog.fold import Outcome, Position, Step
from sharedlog.holdings import Holding
from sharedlog.leading import Candidate
from sharedlog.reading import records
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, decode, encode, encode_facts
from tests.genesis import genesis_of
from tests.memory_disk import MemoryDisk
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
SETTINGS = BrokerSettings(segment_bytes=16 * 1024, queue_count=1, sync_flush=False)
WAIT_SECONDS = 30


class FailingEngine(MemoryEngine):
    """An engine whose reads fail on demand."""

    failure: Callable[[], Exception] | None = None

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        if self.failure is not None:
            raise self.failure()
        return super().read(offset, bytes_max)


def engine_with_messages() -> tuple[FailingEngine, int]:
    """An engine into which another node has written; and where its log ends."""
    engine = FailingEngine(Random(1), EMPTY_HEAD)
    engine.is_well = True
    engine.create_log(encode(genesis_of(CLUSTER)))
    leader = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
    read_on(leader, engine)
    facts = Member("b", "h:1", "http://h:2")._asdict()
    candidate = Candidate(leader.fold, b"who leads epoch1", facts)
    engine.append_if(
        EMPTY_HEAD, [encode(candidate.epoch)], Head(1, candidate.epoch.holder, EMPTY_HEAD.position)
    )
    read_on(leader, engine)
    leader.start_leading(engine, 0, lambda: 0)
    leader.core.sending.send(Message(topic="t", body=b"x", message_id="M"), 0)
    while (one := leader.core.take_flush()) is not None:
        one.write()
        leader.core.complete_flush(one, 0)
    return engine, leader.fold.end


def read_on(copy: Replica, engine: MemoryEngine) -> None:
    while found := engine.read(copy.fold.next_offset, 1):
        for one in found:
            copy.apply_next_record(one.offset, one.stored, 0)


def test_once_its_copy_is_opened_again_a_node_has_no_more_than_the_checkpoint() -> None:
    engine, end = engine_with_messages()
    assert end > 0

    async def until(is_so: Callable[[dict[str, Any]], bool], node: ClusterNode) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not is_so(status_of(node)):
                await asyncio.sleep(0)

    async def run() -> None:
        with ThreadPoolExecutor(4) as executor:
            me = Member("a", "h:3", "http://h:4")
            began = Beginning(CLUSTER, {"segment_bytes": SETTINGS.segment_bytes})
            node = ClusterNode(me, began, engine, MemoryDisk(), SETTINGS, lambda: 0, executor, never)
            let_go: list[Replica | None] = []
            node.on_replica_replaced = lambda: let_go.append(node.actions.replica)
            running = asyncio.create_task(node.run())
            await until(lambda view: view["end_offset"] == end, node)
            assert let_go == [], "the first opening replaces nothing"
            engine.failure = lambda: OSError("the disk has no room")  # the copy is void
            await until(lambda view: view["role"] == Role.OPENING, node)
            engine.failure = lambda: EngineUnavailable("away")
            await until(lambda view: view["role"] == Role.FOLLOWING, node)
            assert status_of(node)["end_offset"] == status_of(node)["next_record"] == 0
            assert status_of(node)["reopened"] == "the disk has no room"
            assert len(let_go) == len(set(map(id, let_go))) > 0, "each core that was replaced is told of"
            engine.failure = None
            await until(lambda view: view["end_offset"] == end and not view["reopened"], node)
            node.leave()
            await running

    asyncio.run(run())


async def follows(
    engine: MemoryEngine, is_so: Callable[[dict[str, Any]], bool]
) -> tuple[dict[str, Any], list[Any]]:
    """Let a node follow until it is as it should be; return what it tells of itself, and has logged."""
    with ThreadPoolExecutor(4) as executor, capture_logs() as logs:
        me, began = Member("a", "h:3", "http://h:4"), Beginning(CLUSTER, {"segment_bytes": 16 * 1024})
        node = ClusterNode(me, began, engine, MemoryDisk(), SETTINGS, lambda: 0, executor, never)
        running = asyncio.create_task(node.run())
        async with asyncio.timeout(WAIT_SECONDS):
            while not is_so(status_of(node)):
                await asyncio.wait({running}, timeout=0.005)
                assert not running.done(), running
        view = status_of(node)
        node.leave()
        await running
    return view, list(logs)


def test_a_node_that_has_read_much_again_needs_not_do_so_at_its_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, end = engine_with_messages()
    monkeypatch.setattr(replica, "EXTRA_CHECKPOINT_BYTES", end)

    def is_written(view: dict[str, Any]) -> bool:
        return bool(view["end_offset"] == end and view["beyond_checkpoint_bytes"] == 0)

    asyncio.run(follows(engine, is_written))


def test_a_node_that_leads_for_a_while_writes_a_checkpoint_if_much_lies_behind_its_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(election_table, "HEALTH_CHECK_SECONDS", 0)
    nodes = list[ClusterNode]()

    def serves(_: Served) -> None:
        monkeypatch.setattr(replica, "EXTRA_CHECKPOINT_BYTES", 1)
        monkeypatch.setattr(nodes[0].actions.open_replica.core, "request_checkpoint", nodes[0].leave)

    asyncio.run(leads(nodes.append, lambda _: None, serves))


def test_silence_begins_when_the_last_record_was_read_however_long_it_takes_to_take_it_in() -> None:
    engine, _ = engine_with_messages()
    told, times = list[int](), iter(range(1_000))
    began = Beginning(CLUSTER, {"segment_bytes": SETTINGS.segment_bytes})
    clocks, health = Clocks(lambda: 0, lambda: next(times)), Health(LagAndSkew(lambda: 0, lambda: 0))
    me = Member("a", "h:3", "http://h:4")
    actions = NodeActions(
        me,
        began,
        engine,
        MemoryDisk(),
        SETTINGS,
        clocks,
        Identity,
        health,
        lambda _, at_ms: told.append(at_ms),
    )
    actions.apply_result(actions.open())
    assert actions.catch_up().records == len(told) > 1
    assert told[0] == told[-1]


def test_a_node_steps_over_records_that_the_engine_has_doubled() -> None:
    engine, end = engine_with_messages()
    count = len(engine.records)
    for offset, stored in enumerate(engine.records):
        engine.spoil(offset, stored, stored)
    view, logs = asyncio.run(follows(engine, lambda view: view["repeated_records"] == count))
    assert (view["end_offset"], view["halted"]) == (end, "")
    assert any("has records twice" in one["event"] for one in logs)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lambda stored: [], "Record 1 is missing: the log has records 0 to 3, and a gap before 2."),
        (lambda stored: [stored, b"another"], "Record 1 of the shared log: the engine has two that differ"),
        (
            lambda stored: [stored[:-1] + b"X"],
            "Record 1 of the shared log: 4 times it did not match its CRC.",
        ),
    ],
)
def test_a_node_needs_a_copy_beyond_a_record_that_the_engine_has_spoiled_and_says_so(
    rows: Callable[[bytes], list[bytes]], said: str
) -> None:
    engine, _ = engine_with_messages()
    engine.spoil(1, *rows(engine.records[1]))
    view, _ = asyncio.run(follows(engine, lambda view: "beyond record 1" in view["copying"]))
    assert view["role"] == Role.COPYING
    assert said in view["copying"]
    assert "tidewheel cluster restore NEW-URL --from STORE" in view["copying"]
    words = [one.facts for one in records(engine, CLUSTER) if one.kind == Kind.HOLD]
    assert [(one["node"], one["unreadable"][:2]) for one in words if "unreadable" in one] == [("a", [1, 0])]


def test_answers_are_held_while_no_other_node_can_read_what_follows_a_broken_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidacy_timer, "LEADER_TIMEOUT_MS", 0)
    monkeypatch.setattr(election_table, "HEALTH_CHECK_SECONDS", 0)
    engine, _ = engine_with_messages()
    answers: list[Answers] = []

    def says(held: Holding, unreadable: list[Any] | None = None) -> None:
        facts = held.facts("c") | ({} if unreadable is None else {"unreadable": unreadable})
        kind = Kind.HOLD if held.end is None else Kind.CHECKPOINT
        engine.append_unchecked(encode(SharedRecord(CLUSTER, kind, 0, NOBODY, 0, 0, encode_facts(facts))))

    def serves(served: Served) -> None:
        answers.append(Answers(0, LeadershipProofs(lambda: 0, lambda: None)))
        served.answers = answers[0]

    async def until(is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not is_so():
                await asyncio.sleep(0.005)

    async def play(node: ClusterNode) -> None:
        says(Holding(1), [2, 0, "Record 2 is missing."])
        await until(lambda: len(damage_of(node)._checked) == 1)
        assert answers[0].held is None, "the record is sound: the disk of the other is bad"
        kept = engine.records[2]
        engine.spoil(2, kept[:-1] + b"X")
        says(Holding(1), [2, 1, "Record 2 does not match its CRC."])
        await until(lambda: answers[0].held is not None)
        assert "Record 2 does not match its CRC" in str(answers[0].held)
        (said,) = status_of(node)["broken_records"]
        assert said in str(answers[0].held)
        assert warnings_of(node) == [said]
        says(Holding(engine.end_offset), [2, 1, "Record 2 does not match its CRC."])
        says(Holding(2, 1))
        await asyncio.sleep(0.05)
        assert answers[0].held is not None
        says(Holding(3, 1))
        await until(lambda: answers[0].held is None)
        assert not status_of(node)["broken_records"]
        assert warnings_of(node) == []
        node.leave()

    played: list[asyncio.Task[None]] = []
    then = lambda node: played.append(asyncio.ensure_future(play(node)))  # noqa: E731

    async def run() -> None:
        await leads(lambda _: None, then, serves, engine)
        await played[0]

    asyncio.run(run())


def test_a_sign_of_life_wakes_nobody_who_waits_for_another_leader() -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            began = Beginning(CLUSTER, {})
            me = Member("a", "h:3", "http://h:4")
            node = ClusterNode(
                me, began, FailingEngine(Random(1)), MemoryDisk(), SETTINGS, lambda: 0, executor, never
            )
            holder = b"who leads epoch1"
            facts = Member("b", "h:1", "http://h:2", certificate="old")._asdict()

            def heard(outcome: Outcome, kind: Kind, said: dict[str, Any]) -> None:
                record = SharedRecord(CLUSTER, kind, 1, holder, 0, CHAIN_AT_GENESIS, encode_facts(said))
                node.handle_input(RecordApplied(Step(outcome, record)))

            heard(Outcome.NEW_EPOCH, Kind.EPOCH, facts)
            changed = node._changed
            heard(Outcome.ALIVE, Kind.BEAT, {"clock_ms": 1})
            heard(Outcome.ALIVE, Kind.BEAT, {"certificate": "new"})
            assert node._changed is changed
            assert node.known_leader is not None
            assert node.known_leader.certificate == "new"
            heard(Outcome.ALIVE, Kind.BEAT, {"leaves": True})
            assert changed.is_set()

    asyncio.run(run())


def damage_of(node: ClusterNode) -> LogDamage:
    """The records that other nodes of a leader cannot read."""
    assert node.leader_term is not None, "it leads"
    return node.leader_term.log_damage


def warnings_of(node: ClusterNode) -> list[str]:
    """What a node adds to its answer to /readyz."""
    says_nothing: Any = SimpleNamespace(sentences=list)
    return ClusterMetrics(node, says_nothing, says_nothing, says_nothing, says_nothing).warnings()


class Served:
    """A broker that nobody calls."""

    held = None

    def __init__(self) -> None:
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers: Any = self

    def confirm_leadership(self, proven_ms: int) -> None:
        pass

    def fail(self, error: OSError) -> None:
        raise AssertionError(error)


async def leads(
    change: Callable[[ClusterNode], None],
    then: Callable[[ClusterNode], None],
    serves: Callable[[Served], None] = lambda _: None,
    engine: MemoryEngine | None = None,
    ends: Callable[[], None] = lambda: None,
) -> None:
    """Let a node lead alone, with changes made before, as it serves and once it leads; wait for its end.

    `ends` is called when it serves no more.
    """

    @asynccontextmanager
    async def serve(*_: Any) -> AsyncIterator[Any]:
        served = Served()
        serves(served)
        yield served
        ends()

    engine = engine or engine_with_messages()[0]
    began = Beginning(CLUSTER, {"segment_bytes": SETTINGS.segment_bytes})
    with ThreadPoolExecutor(4) as executor:
        me = Member("b", "h:3", "http://h:4")
        node = ClusterNode(me, began, engine, MemoryDisk(), SETTINGS, lambda: 0, executor, serve)
        change(node)
        running = asyncio.create_task(node.run())
        async with asyncio.timeout(WAIT_SECONDS):
            while node.role is not Role.LEADING:
                await asyncio.wait({running}, timeout=0.005)
                assert not running.done(), running
            then(node)
            await running


def test_a_leader_that_gives_no_sign_of_life_any_more_for_a_bug_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> NoReturn:
        raise ZeroDivisionError

    def stop_on_internal_error(node: ClusterNode) -> None:
        monkeypatch.setattr(node.leader_term, "beat", fail)

    monkeypatch.setattr(candidacy_timer, "LEADER_TIMEOUT_MS", 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(leads(lambda _: None, stop_on_internal_error))


def test_a_leader_whose_core_meets_a_bug_ends_with_it_and_hands_over_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[Served] = []

    def stop_on_internal_error(node: ClusterNode) -> None:
        monkeypatch.setattr(node.leader_term, "hand_over", never)
        served[0].broken.set_exception(ZeroDivisionError())

    monkeypatch.setattr(candidacy_timer, "LEADER_TIMEOUT_MS", 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(leads(lambda _: None, stop_on_internal_error, served.append))


def test_a_leader_whose_disk_takes_no_checkpoint_at_the_end_hands_over_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (engine, _), failures, leaving = engine_with_messages(), [NoRoom("No checkpoint.")], list[Any]()

    def fail() -> None:
        if failures:
            raise failures.pop()

    def move(node: ClusterNode) -> None:
        async def moved() -> None:
            node.handle_input(inputs.LeadershipTransferRequested("c"))
            while "No checkpoint." not in node.election.reopened:
                await asyncio.sleep(0)
            node.leave()

        leaving.append(asyncio.ensure_future(moved()))

    monkeypatch.setattr(candidacy_timer, "LEADER_TIMEOUT_MS", 0)
    asyncio.run(leads(lambda _: None, move, engine=engine, ends=fail))
    last = [decode(one, CLUSTER).facts for one in engine.records if decode(one, CLUSTER).kind == Kind.BEAT]
    assert {"leaves": True, "to": "c"} in last


@pytest.mark.parametrize("broken", ["tick", "handle_input", "apply_result", "report"])
def test_a_bug_at_any_place_of_a_node_ends_it(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def fail(*_: Any) -> NoReturn:
        raise ZeroDivisionError

    def stop_on_internal_error(node: ClusterNode) -> None:
        where = {"tick": node.leader_term, "handle_input": node.election, "apply_result": node.actions}.get(
            broken
        )
        if where is None:
            monkeypatch.setattr(followers, "report_position", fail)
            node._tasks.start(node._report_to_leader(), is_concurrent=True)
            node.election.leadership.leader = Member("c", "h:1", "http://h:2")
        else:
            monkeypatch.setattr(where, broken, fail)

    monkeypatch.setattr(candidacy_timer, "LEADER_TIMEOUT_MS", 0)
    monkeypatch.setattr(election_table, "HEALTH_CHECK_SECONDS", 0)
    monkeypatch.setattr(followers, "REPORT_SECONDS", 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(asyncio.wait_for(leads(lambda _: None, stop_on_internal_error), WAIT_SECONDS))


def test_an_act_that_ends_with_the_role_before_it_began_is_not_begun() -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            me, began = Member("a", "h:3", "http://h:4"), Beginning(CLUSTER, {})
            engine = FailingEngine(Random(1))
            node = ClusterNode(me, began, engine, MemoryDisk(), SETTINGS, lambda: 0, executor, never)
            node._perform_output(Output(ActionType.CHECK_HEALTH, False))
            node._tasks.cancel_concurrent()
            await node._tasks.end()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert not told, [str(one.message) for one in told]


def test_an_unfit_leader_that_leaves_amid_a_look_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    looking: list[asyncio.Future[None]] = []

    def change(node: ClusterNode) -> None:
        async def look(*_: Any) -> NoReturn:
            looking.append(asyncio.get_running_loop().create_future())
            try:
                await looking[0]
            finally:  # it takes its time
                await asyncio.sleep(0)
            raise AssertionError("the look goes on after the lead")

        monkeypatch.setattr(LeaderTerm, "check_copy_and_log", look)
        monkeypatch.setattr(node.health, "unfit_reason", lambda: "its clock is off")

    def leave(node: ClusterNode) -> None:
        async def amid_a_look() -> None:
            while not looking:
                await asyncio.sleep(0)
            node.leave()

        leaving.append(asyncio.ensure_future(amid_a_look()))

    leaving: list[asyncio.Future[None]] = []
    monkeypatch.setattr(candidacy_timer, "LEADER_TIMEOUT_MS", 0)
    monkeypatch.setattr(candidacy_timer, "UNFIT_DELAY_MS", 0)
    monkeypatch.setattr(election_table, "HEALTH_CHECK_SECONDS", 0)
    asyncio.run(leads(change, leave))
    assert looking


def test_a_look_at_the_clock_that_outlasts_the_lead_is_of_the_past() -> None:
    engine, _ = engine_with_messages()
    before, health = Health(LagAndSkew(lambda: 0, lambda: 0)), Health(LagAndSkew(lambda: 0, lambda: 0))
    me = Member("b", "h:3", "http://h:4")
    began, clocks = Beginning(CLUSTER, {}), Clocks(lambda: 0, lambda: 0)
    actions = NodeActions(
        me, began, engine, MemoryDisk(), SETTINGS, clocks, Identity, before, lambda *_: None
    )
    actions.apply_result(actions.open())
    while actions.catch_up().records:
        pass
    actions.append_epoch(b"who leads epoch2")
    actions.catch_up()
    told = LeaderCallbacks(never, never, never)
    lead = LeaderTerm(actions, health, never, never, told)
    asyncio.run(lead.end())
    lead.compare_clock()
    assert health.lag_and_skew.skew_ms is None
    lead._is_over = False
    lead.compare_clock()
    assert health.lag_and_skew.skew_ms is not None


@pytest.mark.parametrize("ahead_ms", [-60_000, 0, 60_000])
def test_a_look_compares_the_clock_with_the_record_that_was_just_proven(ahead_ms: int) -> None:
    """Not with older ones, nor before there is one: when an EPOCH was appended the node does not know."""
    engine, _ = engine_with_messages()
    now_ms, health = 7, Health(LagAndSkew(lambda: engine.now_ms + ahead_ms, lambda: now_ms))
    began, clocks = Beginning(CLUSTER, {}), Clocks(lambda: engine.now_ms + ahead_ms, lambda: now_ms)
    me = Member("b", "h:3", "http://h:4")
    other = Health(LagAndSkew(lambda: 0, lambda: 0))
    actions = NodeActions(me, began, engine, MemoryDisk(), SETTINGS, clocks, Identity, other, lambda *_: None)
    actions.apply_result(actions.open())
    while actions.catch_up().records:
        pass
    engine.now_ms = 500_000
    actions.append_epoch(b"who leads epoch2")
    actions.catch_up()
    lead = LeaderTerm(actions, health, never, never, LeaderCallbacks(never, never, never))
    lead._check_disk_and_log(True)
    assert health.lag_and_skew.skew_ms is None
    now_ms, engine.now_ms = 1_007, engine.now_ms + 1_000
    sink = actions.open_replica.sink
    assert sink is not None
    sink.beat({})
    lead._check_disk_and_log(True)
    assert health.lag_and_skew.skew_ms == ahead_ms
    assert health.lag_and_skew.is_clock_skewed == (ahead_ms != 0)


def never(*_: Any) -> NoReturn:
    """Serve: a node that only follows is never asked to."""
    raise AssertionError("the node leads")


def test_a_node_that_begins_again_over_a_restored_backup_halts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "LOST_MS", 0)
    (engine, end), disk = engine_with_messages(), MemoryDisk()

    async def run(is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with ThreadPoolExecutor(4) as executor:
            me = Member("a", "h:3", "http://h:4")
            began = Beginning(CLUSTER, {"segment_bytes": SETTINGS.segment_bytes})
            node = ClusterNode(me, began, engine, disk, SETTINGS, lambda: 0, executor, never)
            running = asyncio.create_task(node.run())
            async with asyncio.timeout(WAIT_SECONDS):
                while not is_so(status_of(node)):
                    await asyncio.sleep(0)
            seen = status_of(node)
            node.leave()
            await running
            return seen

    asyncio.run(run(lambda view: view["end_offset"] == end))
    count = engine.end_offset
    del engine.records[1:], engine._taken_ms[1:], engine._heads[1:]
    while engine.end_offset < count + 5:
        engine.append_unchecked(
            encode(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, encode_facts({"node": "c"})))
        )
    seen = asyncio.run(run(lambda view: view["role"] == Role.HALTED))
    assert "of the shared log was read before, and is gone or is another one now" in seen["halted"]
    assert "tidewheel cluster restore NEW-URL --from STORE" in seen["halted"]
