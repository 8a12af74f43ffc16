"""A cluster of three nodes, with changing leaders, keeps its answers to clients; see `cluster_world`.

A mutant omits one rule: the same schedules must detect that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.records.record import Record
from consumequeue.indexes import timerindex_recent
from services.broker.deduplication import WINDOW_MS, Deduplicator
from services.broker.sending import MessageSender
from services.broker.spine.store import Store
from services.broker.spine.values import Resolution
from services.broker.timers.timer_delivery import TimerDelivery
from services.cluster import node_actions, replica
from services.cluster.election.inputs import ActionFailed, EpochConfirmed
from services.cluster.election.table import ActionType, Stage
from services.cluster.errors import CopyRefused
from services.cluster.evidence_file import EvidenceFile
from services.cluster.node_actions import NodeActions
from services.live.durability import LOCAL_RESOURCE_ERRORS, AnswerReceiver, Answers
from sharedlog import versions
from sharedlog.errors import EngineUnavailable, Halted, NotAccepted
from sharedlog.fold import Position
from sharedlog.holdings import Holdings
from sharedlog.record import SharedRecord
from sharedlog.sink import SharedSink
from sharedlog.witness import Witness
from tests.simulation.cluster_world import ClusterWorld, NobodyLeft, Node
from tests.simulation.test_broker import HOUR_MS
from tidewheel.errors import TidewheelError

FOUND_WITHIN = 24


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start cores with small tables: a schedule creates hundreds, with few rows."""
    monkeypatch.setattr(timerindex_recent, "_SLOTS", 1021)


def play(seed: int) -> ClusterWorld:
    world = ClusterWorld(seed)
    with suppress(NobodyLeft):
        for _ in range(300):
            world.step()
            world.around()
        world.compare()
    if world.lost_from is None:
        world.settle()
        world.check()
    return world


def test_nothing_told_is_untrue_on_any_leader(seed: int) -> None:
    world = play(seed)
    assert world.takeover_count > 1 or world.halt_count, "nothing happened to the right to lead"


def test_all_nodes_come_to_the_version_that_a_leader_has_finalized(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = versions.SUPPORTED + 1
    monkeypatch.setattr(versions, "SUPPORTED", newer)
    for seed in range(2):
        world = ClusterWorld(seed)
        for number in range(200):
            world.step()
            world.around()
            if number >= 100 and number % 10 == 0:
                world.finalize(newer)
        world.compare()
        assert world.finalized == newer
        world.settle()
        world.check()


@pytest.mark.parametrize("found", [22217])
def test_a_node_that_dies_in_a_deletion_beside_a_third_snapshot_needs_no_copy(found: int) -> None:
    """A schedule in which the oldest snapshot, which is not needed, is before the first segment."""
    play(found)


def test_what_a_node_told_of_another_history_condemns_no_copy() -> None:
    """A schedule in which the engine keeps the announcement of a checkpoint in a history that it has lost."""
    play(150229)


def test_a_copy_that_makes_its_index_of_keys_anew_is_sound() -> None:
    """A schedule that ends before the leader has written the next checkpoint."""
    play(151428)


@pytest.mark.parametrize("found", [22265, 22750])
def test_a_message_is_stored_once_under_leaders_whose_clocks_are_an_hour_apart(found: int) -> None:
    """Schedules in which the times of records do not give the age of a message."""
    play(found)


def test_a_node_that_reads_again_while_the_engine_loses_its_end_does_not_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A schedule in which only the process has the evidence of the lost records, not the file."""
    monkeypatch.setattr(replica, "EXTRA_CHECKPOINT_BYTES", 4_096)
    play(152009)


def test_a_leader_that_finds_the_end_of_the_engine_lost_halts_while_copies_are_told_again() -> None:
    play(20689)


def test_a_candidate_whose_process_has_read_what_the_engine_lacks_does_not_win() -> None:
    """Lose the end of the engine after the last check of the read records, without later records."""
    world = ClusterWorld(9)
    world.faults.cease()
    world.engine.is_well = True
    node = next(one for one in world.nodes if one is not world.leader)
    process = world._process(node)
    while process.stage is not Stage.IDLE:
        world._act(node)
    own = process.actions
    own.witness.restore((own.open_replica.fold.next_offset + 3, 7))
    candidacy = own.append_epoch(b"the next holder.").candidacy
    assert candidacy is not None
    with pytest.raises(EngineUnavailable, match="was read before, and is gone"):
        own.confirm(candidacy)


def test_seeds_trim_the_log_and_copy_what_is_gone() -> None:
    worlds = [play(seed) for seed in range(6)]
    assert sum(world.trim_count for world in worlds) > 4
    assert sum(world.copy_count for world in worlds) > 1


def test_a_node_that_has_a_copy_after_all_halts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ClusterWorld(9)
    world.engine.is_well = True
    node = next(one for one in world.nodes if one is not world.leader)
    world._end_process(node)
    process, world.lost_from = world._process(node), 0

    def refuse(*_: Any) -> str:
        raise CopyRefused("The copy lacks what this node has seen accepted.")

    is_gone = ActionFailed(ActionType.OPEN_REPLICA, StoreDamaged("A segment is gone."))
    process.apply_record(is_gone)
    with monkeypatch.context() as patch:
        patch.setattr(process.actions.copying, "fetch_copy", refuse)
        world._act(node)
    assert node.is_halted
    while process.due is not ActionType.OPEN_REPLICA:
        world._act(node)
    process.apply_record(is_gone)
    while process.stage is Stage.COPYING:
        world._act(node)
    assert (node.is_halted, world.copy_count) == (False, 1)


def repeats_are_stored_again(patch: pytest.MonkeyPatch) -> None:
    """Do not record message ids on followers, so that a repeated send is stored by the next leader."""
    kept = Store.apply

    def apply(store: Store, record: Record) -> None:
        ids, store.ids = store.ids, None
        kept(store, record)
        store.ids = ids

    patch.setattr(Store, "apply", apply)


def local_disk_is_believed(patch: pytest.MonkeyPatch) -> None:
    """Treat the local log after the checkpoint as accepted."""

    def published(disk: Disk) -> int:
        return layout.published(disk).offset

    patch.setattr(replica, "reset_to_checkpoint", published)


def answers_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Count an append as accepted once the engine has answered, regardless of its offset."""

    def lenient(sink: SharedSink, records: list[SharedRecord]) -> None:
        from sharedlog.engine import Head
        from sharedlog.record import encode

        before = Position(sink._fold.end, sink._fold.chain)
        sink._engine.append_if(
            Head(*sink._right, before), [encode(one) for one in records], sink._current_head()
        )

    patch.setattr(SharedSink, "_append_and_prove", lenient)


def log_is_trimmed_early(patch: pytest.MonkeyPatch) -> None:
    """Trim records that one node has in a checkpoint, regardless of the others."""

    def below(holdings: Holdings) -> int:
        return max((one.next_record for one in holdings.all().values() if one.end is not None), default=0)

    patch.setattr(Holdings, "first_needed_record", property(below))


def no_is_told_without_proof(patch: pytest.MonkeyPatch) -> None:
    """Answer at once without a new record, without a proof of the lead."""
    kept = Answers.send_when_durable

    def send_when_durable(answers: Answers, offset: int, waiting: AnswerReceiver, answer: Any) -> None:
        if offset <= answers.offset:
            waiting.answer(answer)
        else:
            kept(answers, offset, waiting, answer)

    patch.setattr(Answers, "send_when_durable", send_when_durable)


def lost_end_is_read_over(patch: pytest.MonkeyPatch) -> None:
    """Start a node without the witness and the evidence of the records that it had read."""
    patch.setattr(Witness, "require_records", lambda *_: None)
    patch.setattr(EvidenceFile, "open", lambda disk: EvidenceFile(disk, None))


def newest_record_is_a_clock(patch: pytest.MonkeyPatch) -> None:
    """Use the store time of the newest record as a lower bound of the leader's clock."""
    kept = TimerDelivery.deliver

    def deliver(delivery: TimerDelivery, now_ms: int, count_max: int) -> int:
        return kept(delivery, max(now_ms, delivery._store.last_store_ms), count_max)

    patch.setattr(TimerDelivery, "deliver", deliver)


def repeats_are_aged_by_the_new_clock(patch: pytest.MonkeyPatch) -> None:
    """Expire recent ids of the previous leader by the clock of a leader that is ahead."""
    kept = Deduplicator.begin

    def begin(repeats: Deduplicator, now_ms: int) -> None:
        kept(repeats, now_ms)
        repeats.ids.expire_before(max(repeats._since[0], repeats._offset_at(now_ms - WINDOW_MS)))

    patch.setattr(Deduplicator, "begin", begin)


def times_of_another_clock_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Expire the id of a recent timer or half whose leader's clock was behind."""
    patch.setattr(Deduplicator, "may_have_expired_early", lambda *_: False)
    clocks_are_hours_apart(patch)


def clocks_are_hours_apart(patch: pytest.MonkeyPatch) -> None:
    """Set the clocks of the nodes hours apart, so that each takeover changes the hour."""
    kept, hours = ClusterWorld._set_clock, {"a": 0, "b": HOUR_MS, "c": -HOUR_MS}

    def set_clock(world: ClusterWorld, node: Node) -> None:
        before = node.ahead_ms
        kept(world, node)
        if node.ahead_ms != before and not (world.takeover_count and node is world.leader):
            node.ahead_ms += hours[node.name]

    patch.setattr(ClusterWorld, "_set_clock", set_clock)


def repeats_are_refused(patch: pytest.MonkeyPatch) -> None:
    """Refuse messages without a search for one stored by an earlier call."""
    patch.setattr(MessageSender, "_find_first_receipt", lambda *_: None)


def own_trouble_is_told_at_once(patch: pytest.MonkeyPatch) -> None:
    """Answer the refusal of a full leader at once, without a proof of the lead."""
    kept = Answers.send_when_durable

    def send_when_durable(answers: Answers, offset: int, waiting: AnswerReceiver, answer: Any) -> None:
        if offset == LOCAL_RESOURCE_ERRORS:
            waiting.answer(answer)
        else:
            kept(answers, offset, waiting, answer)

    patch.setattr(Answers, "send_when_durable", send_when_durable)


def candidates_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Lead once the node's EPOCH was read, regardless of an earlier EPOCH of another node."""

    def confirm(of: NodeActions, candidacy: Any) -> EpochConfirmed:
        return EpochConfirmed(of.confirm(candidacy).has_won is not None or None)

    patch.setitem(node_actions.ACTION_METHODS, ActionType.CONFIRM_EPOCH, confirm)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    repeats_are_stored_again,
    local_disk_is_believed,
    answers_are_believed,
    log_is_trimmed_early,
    no_is_told_without_proof,
    lost_end_is_read_over,
    newest_record_is_a_clock,
    repeats_are_aged_by_the_new_clock,
    times_of_another_clock_are_believed,
    repeats_are_refused,
    own_trouble_is_told_at_once,
    candidates_are_believed,
]

FIRST_SEEDS = {own_trouble_is_told_at_once: 30}
"""First seed of the schedules known to detect a rare mutant: 7 of 320 do."""
FOUND_BY = {
    lost_end_is_read_over: 19,
    times_of_another_clock_are_believed: 18,
    own_trouble_is_told_at_once: 39,
}
"""Schedules that detect mutants which few others detect; they are tried first."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.__name__)
def test_a_rule_that_is_left_out_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    first = FIRST_SEEDS.get(mutant, 0)
    for seed in dict.fromkeys((FOUND_BY.get(mutant, first), *range(first, first + FOUND_WITHIN))):
        try:
            play(seed)
        except (AssertionError, Halted, NotAccepted, TidewheelError):
            return
    pytest.fail(f"{FOUND_WITHIN} schedules have not found it")


def test_a_half_from_below_a_cut_of_the_log_is_committed_by_the_next_leader() -> None:
    world = ClusterWorld(1)
    world.faults.cease()
    world.engine.is_well = True
    world.send_half()
    world.flush()
    (half,) = world.told.halves.values()
    while world.broker.store.log.first_offset <= half.physical_offset:
        for action in (world.send, world.flush, world.receive, world.acknowledge, world.flush):
            action()
        world.checkpoint()
        world.pass_time()
    for node in world.nodes:
        world.read_all(node)
    before = world.leader
    while world.leader is before:
        world.change_leader()
    for message_id in world.told.halves:
        world._end(message_id, Resolution.COMMIT)
    world.flush()
    world.settle()
    world.check()
