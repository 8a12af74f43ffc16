"""The engine of a cluster is lost, or restored from a backup, and all nodes restart; see `cluster_world`.

Four cases: the engine is lost; it is restored without its newest records; it has grown again since, under a
node without these records; its newest known record has a flipped bit. Nodes were killed, or lost their power.
Then disks lose sectors of their logs, and some all slots of their evidence. The rules are:

1. No node reports a fault of a sound log that contains dead records.
2. No node becomes a candidate if its evidence names a record that the engine lacks or has changed, nor does
   it accept the copy of a node with another history.
3. A changed record is reported by its number, and not as a lost end.
4. Each store reports its damage exactly, and restores all other data byte by byte: all that it had synced
   with its evidence, and after a kill all acknowledged messages.
"""

from __future__ import annotations

import io
import zlib
from contextlib import suppress

import pytest

from commitlog import layout
from commitlog.errors import StoreError
from commitlog.log.recovery import Damage
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import encode
from services.cluster import evidence_file, founding
from services.cluster.copies import transfer
from services.cluster.copies.transfer import FetchedCopy
from services.cluster.errors import CopyRefused
from services.cluster.evidence_file import EvidenceFile
from services.cluster.founding import RemainingData, recover_remaining_data, remaining_data
from services.cluster.replica import SharedPart
from services.cluster.tail import Tail
from sharedlog import fold as folds
from sharedlog import witness as witnesses
from sharedlog.errors import EngineUnavailable, Halted, LogDamaged, LogTrimmed
from sharedlog.faults import fault_at
from sharedlog.fold import Fold, Outcome, Position
from sharedlog.witness import Witness
from tests.memory_disk import MemoryDisk
from tests.simulation.cluster_world import CLUSTER, ClusterWorld, NobodyLeft, Node, sent_by, well
from tests.simulation.test_broker import TOPIC
from tidewheel import property_names

FATES = ("lost", "restored", "grown again", "changed")
FOUND_WITHIN = 40
POSITIONS_KEPT = 12
"""Number of positions kept in a checkpoint of these worlds, whose histories are short."""


class Disaster:
    """The world of a seed after some steps, and its expected contents."""

    def __init__(self, seed: int) -> None:
        self.world = world = ClusterWorld(seed + seed // 9)
        world.is_truncating = False
        self.fate = FATES[seed % 4]
        for _ in range(120):
            world.step()
            world.around()
        self.check_sound()
        self.told = set(world.told.normal)
        self.history = {record.physical_offset: record for record, _ in world._history()}
        self.spans = sorted((at, at + len(encode(one))) for at, one in self.history.items())
        """The start and end offset of each record of the history."""
        self.loses_power = world.random.random() < 0.5
        self.seen: dict[str, tuple[int, int]] = {}
        """By node: the newest record of a leader that a killed process had applied, with its CRC-32."""
        self.stranger: Node | None = None
        self.spoiled: dict[str, list[Damage]] = {}
        self.changed = -1
        """The record that the engine has changed, or -1."""
        self.end_processes()
        if self.fate in ("restored", "grown again"):
            self.restore_backup()
        if self.fate == "changed":
            self.change_record()

    def check_sound(self) -> None:
        """Verify that a reader of the whole log finds no fault in a sound log at any record."""
        engine, fold = well(self.world.engine), Fold()
        for offset, stored in enumerate(self.world.engine.records):
            fold.apply_record(offset, stored)
        faults = [fault_at(engine, fold, one) for one in range(engine.first_offset, engine.end_offset)]
        assert not any(faults), f"a fault of a sound log: {[one for one in faults if one][:3]}"

    def end_processes(self) -> None:
        """Kill all nodes, or cut their power."""
        random = self.world.random
        for node in self.world.nodes:
            node.disk.well()
            replica = node.replica
            if replica is not None and not self.loses_power and replica.last_led is not None:
                self.seen[node.name] = replica.last_led
            self.world._end_process(node)
            end = node.disk.crash if self.loses_power else node.disk.kill
            end(lambda count: random.randrange(count + 1))

    def restore_backup(self) -> None:
        """Restore the engine to an earlier state; in one case a node with an empty disk has led since."""
        world, engine = self.world, self.world.engine
        engine.is_well, before = True, engine.end_offset
        cut = engine.end_offset - world.random.randrange(1, 40)
        cut = max(1, engine.first_offset, cut)
        while engine.compares and cut > 1 and engine._heads[cut - 1] is None:
            cut -= 1
        engine.first_offset = min(engine.first_offset, cut)
        del engine.records[cut:], engine._taken_ms[cut:], engine._heads[cut:]
        engine._head = engine._heads[-1] if engine.compares else None
        if self.fate == "grown again" and engine.first_offset == 0:
            self.grow_again(before)

    def grow_again(self, before: int) -> None:
        """Let a node with an empty disk lead until the log is longer than before, in records and bytes."""
        world, engine = self.world, self.world.engine
        stranger, longest = Node("d", MemoryDisk()), self.spans[-1][1] if self.spans else 0
        with suppress(Halted):
            while not world._stand(stranger):
                pass
            replica = world._process(stranger).actions.open_replica
            replica.start_leading(engine, world.now_ms, world._moments.__next__)
            assert replica.sink is not None
            core, size = replica.core, replica.core.segment_bytes
            while engine.end_offset < before + 5 or core.end_offset < longest + 2 * size:
                message = Message(topic=TOPIC, body=b"d" * (size // 2), message_id=f"D{engine.end_offset}")
                core.sending.send(message, world.now_ms)
                while (one := core.take_flush()) is not None:
                    one.write()
                    core.complete_flush(one, world.now_ms)
                replica.sink.beat({})
            replica.checkpoint(world.now_ms)
            self.stranger = stranger

    def change_record(self) -> None:
        """Flip a bit of the newest record in the engine that any node has evidence of."""
        engine, claims = self.world.engine, [self.claimed(node) for node in self.world.nodes]
        engine.is_well = True
        newest = max((one[0] for one in claims if one is not None), default=-1)
        self.changed = newest if newest >= engine.first_offset else -1
        if self.changed >= 0:
            stored = engine.records[newest]
            engine.spoil(newest, stored[:-1] + bytes([stored[-1] ^ 4]))

    def claimed(self, node: Node) -> tuple[int, int] | None:
        """Return (record, CRC-32) of the newest record of a leader that a node must have evidence of."""
        claimed = evidence_file.read(node.disk)
        of_file = None if claimed is None else (claimed.record, claimed.crc)
        return max((one for one in (of_file, self.seen.get(node.name)) if one is not None), default=None)

    def begin(self, node: Node) -> Exception | None:
        """Restart a node; return the error that prevents it from leading after reading the log, or None."""
        engine, failure = self.world.engine, EngineUnavailable("it waits")
        for _ in range(3):
            try:
                replica = self.world._up(node)
                self.world._process(node).actions.witness.require_records(engine, replica.fold)
                while found := engine.read(replica.fold.next_offset, 1):
                    if found[0].offset > replica.fold.next_offset:
                        return LogTrimmed("it needs what was let go")
                    for one in found:
                        step = replica.apply_next_record(one.offset, one.stored, self.world.now_ms)
                        if step.outcome is Outcome.READ_AGAIN:
                            break
                replica.prepare_to_lead()
            except EngineUnavailable as error:
                failure = error
                continue
            except (Halted, LogTrimmed) as error:
                return error
            return None
        return failure

    def check_silence(self) -> None:
        """Verify that nodes refuse an engine, and copies, without a record that they have evidence of."""
        engine = self.world.engine
        for node in self.world.nodes:
            claimed = self.claimed(node)
            if claimed is None or claimed[0] < engine.first_offset:
                continue
            stored = engine.records[claimed[0] : claimed[0] + 1]
            is_there = bool(stored) and zlib.crc32(stored[0]) == claimed[1]
            if not is_there:
                assert self.begin(node) is not None, f"{node.name} leads over {self.fate}, and says nothing"
                self.check_copy(node)

    def check_copy(self, node: Node) -> None:
        """Verify that a node refuses the copy of a node with another history."""
        claimed = evidence_file.read(node.disk)
        now = Fold()
        for offset, stored in enumerate(self.world.engine.records):
            now.apply_record(offset, stored)
        # If the engine has lost only BEATs, the copy has all data of the node.
        if self.stranger is None or claimed is None or now.has_position(Position(claimed.end, claimed.chain)):
            return
        # Another leader of that epoch may have written the same bytes: then nothing is lost.
        if log_before(node.disk, claimed.end) == log_before(self.stranger.disk, claimed.end):
            return
        require, random = self.world._process(node).actions.copying._require_covered, self.world.random
        keeps_old = random.random() < 0.5

        def require_of_new(copy: FetchedCopy) -> None:
            for path in [one for one in copy._numbers if one.startswith(f"{layout.COMMITLOG}/")]:
                if not keeps_old and int(path[-layout.OFFSET_DIGITS :]) < claimed.end:
                    del copy._numbers[path]  # as retention does eventually
            require(copy)

        with pytest.raises(CopyRefused):
            transfer.receive_copy(io.BytesIO(sent_by(self.stranger)), node.disk, require_of_new)
        transfer.delete_pending_copy(node.disk)

    def check_changed(self) -> None:
        """Verify that nodes that have not yet read the changed record report it."""
        for node in self.world.nodes:
            if self.world._up(node).fold.next_offset <= self.changed:
                failure = self.begin(node)
                is_named = isinstance(failure, LogDamaged) and failure.record == self.changed
                assert is_named or isinstance(failure, LogTrimmed), f"{node.name}: {failure}"

    def spoil_disks(self) -> None:
        """Overwrite parts of the logs of disks, and the whole evidence of some."""
        random = self.world.random
        for node in self.world.nodes:
            self.world._end_process(node)
            node.disk.well()
            claimed, disk = evidence_file.read(node.disk), node.disk
            if claimed is None:
                continue
            firsts, known = layout.segment_offsets(disk), node.synced_end if self.loses_power else claimed.end
            there = [one for one in self.spans if one[1] <= min(claimed.end, known) and one[0] >= firsts[0]]
            for start, end in random.sample(there, min(len(there), random.randrange(4))):
                first, at = max(one for one in firsts if one <= start), random.randrange(start, end - 1)
                path, place = layout.segment_path(first), at - first
                disk.write(path, place, bytes(one ^ 0xA5 for one in disk.read(path, place, min(2, end - at))))
                self.spoiled.setdefault(node.name, []).append(Damage(start, end))
            if random.random() < 0.15:
                disk.write(layout.EVIDENCE, 0, bytes(disk.size(layout.EVIDENCE)))

    def check_restored(self) -> None:
        """Verify that each store reports its damage, and has all other required data."""
        stores = [node for node in self.world.nodes if node.disk.size(layout.FORMAT) >= 0]
        found = [self.check_left(remaining_data(node.disk), node) for node in stores]
        if not self.loses_power:
            gone = self.told.difference(*found)
            assert not gone, f"told, and gone: {sorted(gone)[:3]}"

    def check_left(self, left: RemainingData, node: Node) -> set[str]:
        """Compare the data of a store with its damage; return the message ids that it had before that."""
        bad = {one.first_offset for one in self.spoiled.get(node.name, [])}
        synced = [end for start, end in self.spans if end <= node.synced_end and start not in bad]
        assert left.end >= max(synced, default=0), f"{node.name}: {left.end} of {synced[-1]} synced bytes"
        begins_at = min(layout.segment_offsets(node.disk), default=0)
        core = recover_remaining_data(node.disk, left, SharedPart(Fold(CLUSTER)), self.world.now_ms)
        assert core.end_offset == left.end
        log, had = core.store.log, set()
        for start, end in self.spans:
            record, is_named = self.history[start], self.is_named(left, start)
            # An earlier power cut may also have taken the record of retention.
            may_lack = end > node.synced_end or start < begins_at
            if record.topic == TOPIC and (start in bad or (end <= left.end and not is_named)):
                had.add(properties.value_of(record.properties, property_names.MESSAGE_ID) or "")
            if end > left.end or start < log.first_offset:
                continue
            assert is_named or start not in bad, f"{node.name}: the damage at {start} is not named"
            assert not is_named or start in bad or may_lack, f"{node.name}: sound bytes at {start} are lost"
            if not is_named and end <= max(left.accepted_end, node.synced_end):
                kept = log.read(start)
                assert (kept.topic, kept.body) == (record.topic, record.body), f"byte {start} is another"
        return had

    def is_named(self, left: RemainingData, offset: int) -> bool:
        """Return whether a store reports damage at an offset."""
        return any(one.first_offset <= offset < one.end_offset for one in left.damaged)


def log_before(disk: MemoryDisk, end: int) -> list[tuple[int, bytes]]:
    """Return (first offset, bytes) of the segments of a log up to an offset."""
    firsts = [first for first in layout.segment_offsets(disk) if first < end]
    ends = [*firsts[1:], end]
    return [
        (first, disk.read(layout.segment_path(first), 0, until - first))
        for first, until in zip(firsts, ends, strict=True)
    ]


def play(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "FROZEN_POSITIONS_MAX", POSITIONS_KEPT)
        try:
            disaster = Disaster(seed)
        except NobodyLeft:  # must not happen with a sound engine
            raise AssertionError("nobody leads") from None
        if disaster.fate == "changed":
            disaster.check_changed()
        elif disaster.fate != "lost":
            disaster.check_silence()
        disaster.spoil_disks()
        disaster.check_restored()


def test_a_lost_engine_is_never_silent_and_nothing_that_a_disk_has_is_lost(seed: int) -> None:
    play(seed)


def nothing_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Keep the evidence of read records only in the process."""
    patch.setattr(EvidenceFile, "write", lambda *_: None)


def restart_forgets(patch: pytest.MonkeyPatch) -> None:
    """Ignore the evidence at a restart."""
    patch.setattr(EvidenceFile, "open", lambda disk: EvidenceFile(disk, None))


def tail_is_cut_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """Cut the log after the checkpoint when a copy is opened."""
    kept = Tail.__init__

    def cut(tail: Tail, disk: MemoryDisk, segment_bytes: int, end_offset: int) -> None:
        kept(tail, disk, segment_bytes, end_offset)
        tail.truncate_at(end_offset)

    patch.setattr(Tail, "__init__", cut)


def restore_ends_at_damage(patch: pytest.MonkeyPatch) -> None:
    """Restore only the log before the first damage."""
    kept = founding._scan_valid_records

    def first(disk: MemoryDisk, segment_bytes: int, until: int) -> tuple[int, list[Damage]]:
        end, damaged = kept(disk, segment_bytes, until)
        return (damaged[0].first_offset, []) if damaged else (end, [])

    patch.setattr(founding, "_scan_valid_records", first)


def damage_is_not_named(patch: pytest.MonkeyPatch) -> None:
    """Restore all sound records without a report of the others."""
    kept = founding.remaining_data
    patch.setitem(globals(), "remaining_data", lambda disk: kept(disk)._replace(damaged=()))


def evidence_must_be_sound(patch: pytest.MonkeyPatch) -> None:
    """Restore a store without evidence only up to its checkpoint."""
    kept = founding.remaining_data

    def left(disk: MemoryDisk) -> RemainingData:
        found = kept(disk)
        return found._replace(end=found.checkpoint) if found.unproven else found

    patch.setitem(globals(), "remaining_data", left)


def changed_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Treat a changed record as a lost end."""
    patch.setattr(witnesses, "_is_corrupt", lambda *_: False)


def nothing_in_common_is_the_same(patch: pytest.MonkeyPatch) -> None:
    """Accept a copy that has no bytes in common with the store."""
    kept = FetchedCopy.has_same_bytes_before

    def same(copy: FetchedCopy, end: int, bytes_max: int) -> bool:
        return min(copy._segment_offsets, default=end) >= end or kept(copy, end, bytes_max)

    patch.setattr(FetchedCopy, "has_same_bytes_before", same)


MUTANTS = (
    nothing_is_kept,
    restart_forgets,
    tail_is_cut_at_a_start,
    restore_ends_at_damage,
    damage_is_not_named,
    evidence_must_be_sound,
    changed_is_lost,
    nothing_in_common_is_the_same,
)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_that_is_left_out_is_found(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(mutant)
    mutant(monkeypatch)
    for seed in range(FOUND_WITHIN):
        try:
            play(seed)
        except (AssertionError, StoreError, pytest.fail.Exception):  # the cut records are missing
            return
    pytest.fail(f"{FOUND_WITHIN} schedules have not found it")


def test_witnesses_are_asked_by_what_a_file_keeps() -> None:
    witness = Witness(lambda: 0)
    witness.restore((7, 1))
    witness.restore((3, 2))
    assert witness.last_led == (7, 1)
