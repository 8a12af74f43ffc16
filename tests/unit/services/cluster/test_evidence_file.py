"""The evidence file: whatever a kill or a power cut does to unsynced writes, one slot is sound."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from commitlog import layout
from commitlog.disk.disk import SyncFailed
from services.cluster import evidence_file
from services.cluster.evidence import Evidence
from services.cluster.evidence_file import SLOT_BYTES, SLOT_COUNT, EvidenceDamaged, EvidenceFile, read
from tests.memory_disk import Death, Fault, MemoryDisk

CLUSTER = b"one cluster's id"
BYTES = len(evidence_file.encode(0, Evidence(CLUSTER, 0, 0, 0, 0, 0)))


def one(number: int) -> Evidence:
    return Evidence(CLUSTER, 100 * number, 2**64 - 1 - number, number, number, number)


def begun() -> tuple[MemoryDisk, EvidenceFile]:
    disk = MemoryDisk()
    file = EvidenceFile.open(disk)
    assert read(disk) is None
    file.write(one(1))
    return disk, file


def test_what_was_written_last_is_read() -> None:
    disk, file = begun()
    for number in range(2, 20):
        file.write(one(number))
        assert read(disk) == one(number) == file.written
        if number % 5 == 0:
            file.sync()
    assert read(disk) == EvidenceFile.open(disk).written == one(19)
    assert disk.size(layout.EVIDENCE) == SLOT_COUNT * SLOT_BYTES


@pytest.mark.parametrize("torn", range(BYTES + 1))
def test_a_write_that_is_torn_at_any_byte_leaves_what_was_synced_before(torn: int) -> None:
    disk, file = begun()
    for number in (2, 3):
        file.write(one(number))
        file.sync()
    file.write(one(4))
    disk.crash(lambda count: min(count, torn))
    assert read(disk) == (one(4) if torn == BYTES else one(3))


def test_no_order_of_losses_of_unsynced_writes_takes_what_was_synced() -> None:
    writes = 4
    for kept in product((0, 40, BYTES), repeat=writes):
        disk, file = begun()
        file.write(one(2))
        file.sync()
        for number in range(3, 3 + writes):
            file.write(one(number))
        left = iter(kept)
        disk.crash(lambda count, left=left: next(left, count) if count == BYTES else count)  # type: ignore[misc]
        found = read(disk)
        assert found is not None
        assert found.record >= 2


@pytest.mark.parametrize("syncs", range(7))
def test_syncs_between_which_nothing_was_written_do_not_come_round_to_the_newest_slot(syncs: int) -> None:
    disk, file = begun()
    file.write(one(2))
    for _ in range(1 + syncs):
        file.sync()
    file.write(one(3))
    disk.crash(lambda count: count // 2)
    assert read(disk) == one(2)


class SlowDisk(MemoryDisk):
    """A disk during whose sync another thread writes; the power may go before the sync ends."""

    during: EvidenceFile | None = None
    dies = False

    def sync(self, path: str) -> None:
        if path == layout.EVIDENCE and self.during is not None:
            file, self.during = self.during, None
            file.write(one(8))
            file.write(one(9))
            if self.dies:
                raise Death("the power goes during a sync")
        super().sync(path)


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("torn", range(0, BYTES + 1, 4))
def test_what_is_written_during_a_sync_does_not_tear_what_that_takes_to_disk(torn: int, dies: bool) -> None:
    disk = SlowDisk()
    file = EvidenceFile.open(disk)
    file.write(one(1))
    file.write(one(2))
    file.sync()
    file.write(one(3))
    disk.during, disk.dies = file, dies
    if dies:
        with pytest.raises(Death):
            file.sync()
    else:
        file.sync()
    disk.crash(lambda count: min(count, torn))
    found = read(disk)
    assert found is not None
    assert found.record >= (2 if dies else 3)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", range(1, 6))
def test_an_opening_that_ends_anywhere_loses_nothing(number: int, fault: Fault) -> None:
    random = Random(number)
    disk, file = begun()
    file.write(one(2))
    file.sync()
    disk.strike(number, fault)
    try:
        EvidenceFile.open(disk)
    except Death:
        disk.crash(lambda count: random.randrange(count + 1))
    except OSError:
        disk.well()
    assert read(disk) == one(2)


def test_after_a_failed_sync_the_file_is_made_anew() -> None:
    disk, file = begun()
    file.write(one(2))
    disk.failing_syncs = 1
    disk.choose = lambda _: 0
    with pytest.raises(SyncFailed):
        file.sync()
    assert EvidenceFile.open(disk).written == one(2)
    disk.crash(lambda _: 0)
    assert read(disk) == one(2)


def test_a_file_without_a_sound_slot_halts_the_node() -> None:
    disk, _ = begun()
    for slot in range(SLOT_COUNT):
        disk.flip_bit(layout.EVIDENCE, 8 * (slot * SLOT_BYTES + 33))
    with pytest.raises(EvidenceDamaged, match="No slot"):
        EvidenceFile.open(disk)
