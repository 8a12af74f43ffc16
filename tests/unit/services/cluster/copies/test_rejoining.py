"""A snapshot of a node's store reads on in the shared log, if that has what comes next."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from commitlog import layout, store_format
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import NotAStore
from services.broker.spine.settings import BrokerSettings
from services.cluster.copies.rejoining import rejoin_cluster
from services.cluster.replica import Replica
from services.store.copying.copying import copy_store
from sharedlog.engines import create, read_genesis
from sharedlog.errors import Halted, LogTrimmed
from sharedlog.holdings import Holding
from sharedlog.record import NOBODY, Kind, SharedRecord, encode, encode_facts
from tests.memory_engine import MemoryEngine

SEGMENT_BYTES = 1 << 20
NOW_MS = 1_800_000_000_000


class Engine(MemoryEngine):
    """An engine in memory, which a cluster begins in."""

    def create_log(self, _: object) -> None:
        """Make nothing: it is empty."""


@pytest.fixture
def engine() -> Engine:
    engine = Engine(Random(1))
    engine.is_well = True
    create(engine, {"segment_bytes": SEGMENT_BYTES})  # type: ignore[arg-type]  # an engine in memory
    return engine


def note(engine: Engine) -> None:
    """Add a record that is nobody's right."""
    cluster = read_genesis(engine).cluster
    engine.append_unchecked(
        encode(
            SharedRecord(cluster, Kind.HOLD, 0, NOBODY, 0, 0, encode_facts({"node": "b", "next_record": 0}))
        )
    )


@pytest.fixture
def copy(engine: Engine, tmp_path: Path) -> Path:
    """A snapshot of a node that has read four records."""
    for _ in range(3):
        note(engine)
    with closing(RealDisk(tmp_path / "node")) as disk:
        store_format.open_format(disk, SEGMENT_BYTES)
        replica = Replica.open(
            disk, BrokerSettings(segment_bytes=SEGMENT_BYTES), NOW_MS, read_genesis(engine).cluster
        )
        for one in engine.read(0, 1 << 20):
            replica.apply_next_record(one.offset, one.stored, NOW_MS)
        replica.checkpoint(NOW_MS)
    copy_store(tmp_path / "node", tmp_path / "copy")
    return tmp_path / "copy"


def test_a_copy_reads_on_where_its_checkpoint_ends(engine: Engine, copy: Path) -> None:
    note(engine)
    assert rejoin_cluster(engine, copy, "c") == 4  # type: ignore[arg-type]  # an engine in memory
    named = json.loads((copy / layout.CLUSTER).read_text())
    assert named == {"cluster": read_genesis(engine).cluster.hex(), "node": "c"}


def test_a_log_that_was_trimmed_behind_the_copy_joins_nothing(engine: Engine, copy: Path) -> None:
    cluster = read_genesis(engine).cluster
    facts = Holding(6, 0, begins={"segment_bytes": SEGMENT_BYTES}).facts("b")
    for _ in range(3):
        engine.append_unchecked(
            encode(SharedRecord(cluster, Kind.CHECKPOINT, 0, NOBODY, 0, 0, encode_facts(facts)))
        )
    engine.trim(5)
    with pytest.raises(LogTrimmed, match="reads on from record 4, and the log begins at 5"):
        rejoin_cluster(engine, copy, "a")  # type: ignore[arg-type]  # an engine in memory
    assert not (copy / layout.CLUSTER).exists()


def test_an_engine_that_is_older_than_the_copy_joins_nothing(engine: Engine, copy: Path) -> None:
    engine.bounds = lambda: (0, 3)  # type: ignore[method-assign]
    with pytest.raises(Halted, match="up to record 3, and the log ends at 2: the engine's backup is older"):
        rejoin_cluster(engine, copy, "a")  # type: ignore[arg-type]  # an engine in memory
    assert not (copy / layout.CLUSTER).exists()


def test_the_log_of_another_cluster_joins_nothing(copy: Path) -> None:
    other = Engine(Random(2))
    other.is_well = True
    create(other, {})  # type: ignore[arg-type]  # an engine in memory
    with pytest.raises(Halted, match="is of another cluster than"):
        rejoin_cluster(other, copy, "a")  # type: ignore[arg-type]  # an engine in memory


def test_a_store_without_a_checkpoint_of_a_node_is_refused(engine: Engine, tmp_path: Path) -> None:
    with closing(RealDisk(tmp_path)) as disk:
        store_format.open_format(disk, SEGMENT_BYTES)
    with pytest.raises(NotAStore, match="no checkpoint of a node"):
        rejoin_cluster(engine, tmp_path, "a")  # type: ignore[arg-type]  # an engine in memory
