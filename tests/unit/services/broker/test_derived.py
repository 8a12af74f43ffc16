"""What a start notes of the log while it makes queues or the key index anew: damage, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.snapshots import snapshot
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.cluster.evidence_file import EvidenceFile
from services.cluster.replica import Replica, SharedPart
from services.store.copying.copying import copy_store
from sharedlog.fold import Fold
from tests.unit.services.broker.test_retention import KEEP_ONE, Bench
from tests.unit.services.broker.timers.test_timers import Store


@pytest.mark.parametrize("lost", ["consumequeue", "keyindex", layout.QUEUES_WHOLE, ""])
def test_a_sound_log_that_goes_on_behind_its_snapshot_is_not_damaged(lost: str) -> None:
    """As after any `kill -9`: messages came since the last checkpoint, and the queues are to be made anew."""
    store = Store()
    for number in range(4):
        store.send(f"M{number}", None, key=f"k{number}")
    store.broker.store.dispatch.write()
    store.checkpoint()
    store.send("behind the snapshot", None)
    store.disk.kill(lambda _: 0)
    if lost:
        store.disk.delete(lost)
    start = snapshot.newest(store.disk)
    assert start is not None
    assert start.offset < layout.published(store.disk).offset
    broker = Broker.open(store.disk, store.settings, store.now_ms)
    assert bool(broker.rebuilt_files) == bool(lost)
    assert [*broker.damage] == []


@pytest.mark.parametrize("lost", ["keyindex", layout.QUEUES_WHOLE, ""])
def test_a_sound_store_may_found_a_cluster_though_its_queues_are_made_anew(lost: str) -> None:
    """The steps of `founding._found`, where the store goes on behind its snapshot."""
    store = Store()
    store.send("M0", None, key="k")
    store.checkpoint()
    store.send("behind the snapshot", None)
    store.disk.kill(lambda _: 0)
    if lost:
        store.disk.delete(lost)
    shared = SharedPart(Fold(b"c" * 16))
    core = Broker.recover(store.disk, store.settings, store.now_ms, None, shared)
    assert bool(core.rebuilt_files) == bool(lost)
    Replica(store.disk, core, shared, EvidenceFile(store.disk, None)).require_sound(has_read_all=True)


def test_the_first_start_of_a_sound_copy_tells_of_no_damage(tmp_path: Path) -> None:
    """`tidewheel store copy` leaves out queues of few entries: the copy's first start makes them anew."""
    disk, settings = RealDisk(tmp_path / "store"), BrokerSettings(segment_bytes=1 << 16, queue_count=1)
    store = Store()
    store.disk, store.settings = disk, settings  # type: ignore[assignment]
    store.broker = Broker.open(disk, settings, store.now_ms)
    store.send("M0", None)
    store.checkpoint()
    store.send("behind the snapshot", None)
    copy_store(tmp_path / "store", tmp_path / "copy")
    broker = Broker.open(RealDisk(tmp_path / "copy"), settings, store.now_ms)
    assert [one.what for one in broker.damage] == []


@pytest.fixture
def cut() -> Bench:
    """A broker whose log is cut, and nothing of it deleted yet."""
    bench = Bench()
    for _ in range(40):
        bench.send()
    bench.reopen(KEEP_ONE)
    bench.deletions = []
    bench.advance(10_000)
    return bench


def damage_below_the_cut(bench: Bench) -> None:
    first = bench.broker.store.log.first_offset
    oldest = bench.disk.list("commitlog")[0]
    assert int(oldest) + bench.settings.segment_bytes <= first, "it lies below the cut, as a whole"
    bench.disk.flip_bit(f"commitlog/{oldest}", 8 * 3_000)


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_start_that_makes_queues_anew_tells_of_no_damage_below_the_cut(
    cut: Bench, is_made_anew: bool
) -> None:
    damage_below_the_cut(cut)
    if is_made_anew:
        cut.disk.delete(layout.QUEUES_WHOLE)
    cut.broker = Broker.open(cut.disk, KEEP_ONE, cut.now_ms)
    assert bool(cut.broker.rebuilt_files) == is_made_anew
    assert [one.part for one in cut.broker.damage] == []


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_damage_below_the_cut_gives_no_copy_up(cut: Bench, is_made_anew: bool) -> None:
    damage_below_the_cut(cut)
    done = cut.broker.checkpoint(cut.now_ms)  # so that nothing lies behind the snapshot
    done.write(cut.disk)
    cut.broker.complete_checkpoint(done)
    if is_made_anew:
        cut.disk.delete(layout.QUEUES_WHOLE)
    shared = SharedPart(Fold(b"c" * 16))
    core = Broker.recover(cut.disk, KEEP_ONE, cut.now_ms, None, shared)
    assert bool(core.rebuilt_files) == is_made_anew
    Replica(cut.disk, core, shared, EvidenceFile(cut.disk, None)).require_sound(has_read_all=True)
