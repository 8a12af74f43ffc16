"""A cluster's version: told in the log, kept in a checkpoint, never lowered, and a bar to older programs."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from commitlog import layout
from commitlog.facts.facts import EpochBegun
from services.broker.spine.settings import BrokerSettings
from services.cluster.copies.checkpoints import OwnCopy, look_for_copies
from services.cluster.replica import Replica
from sharedlog import versions
from sharedlog.engine import Head
from sharedlog.engines import Beginning
from sharedlog.errors import Halted
from sharedlog.fold import Fold, Outcome, Position
from sharedlog.holdings import Holding
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, VERSION, Kind, SharedRecord, body_of, encode
from tests.memory_disk import MemoryDisk
from tests.memory_engine import MemoryEngine

CLUSTER, ME = b"c" * 16, b"m" * 16


def record(kind: Kind, facts: dict[str, object]) -> SharedRecord:
    """A record of epoch 1 (a GENESIS: of none) of a history without a byte."""
    epoch, holder = (0, NOBODY) if kind is Kind.GENESIS else (1, ME)
    return SharedRecord(CLUSTER, kind, epoch, holder, 0, CHAIN_AT_GENESIS, body_of(facts) if facts else b"")


def folded(*records: SharedRecord) -> Fold:
    """A fold that has taken records."""
    fold = Fold(CLUSTER)
    for offset, one in enumerate(records):
        assert fold.take(offset, encode(one)).outcome is not Outcome.DEAD
    return fold


GENESIS, EPOCH = record(Kind.GENESIS, {}), record(Kind.EPOCH, {"node": "a"})


def test_a_log_that_does_not_say_has_the_oldest_and_a_beat_raises_it_for_good() -> None:
    assert folded(GENESIS, EPOCH).finalized == versions.OLDEST
    assert folded(record(Kind.GENESIS, {"finalized": 2})).finalized == 2
    raised = folded(GENESIS, EPOCH, record(Kind.BEAT, {"finalize": 2}))
    assert raised.finalized == 2
    raised.take(3, encode(record(Kind.BEAT, {"finalize": 1})))
    raised.take(4, encode(record(Kind.BEAT, {"of a newer program": 7, "clock_ms": 1})))
    assert raised.finalized == 2
    assert Fold.thaw(json.loads(json.dumps(raised.freeze()))).finalized == 2


def test_a_program_that_does_not_support_the_clusters_version_halts_where_it_reads_of_it() -> None:
    newer = versions.SUPPORTED + 1
    why = f"finalized version is {newer}, and this program supports up to {versions.SUPPORTED}: install"
    with pytest.raises(Halted, match=why):
        folded(record(Kind.GENESIS, {"finalized": newer}))
    fold = folded(GENESIS, EPOCH)
    for _ in range(2):  # and takes nothing more
        with pytest.raises(Halted, match=why):
            fold.take(2, encode(record(Kind.BEAT, {"finalize": newer})))
    frozen = folded(GENESIS, EPOCH).freeze()
    with pytest.raises(Halted, match=why):
        Fold.thaw(frozen | {"finalized": newer})


def test_what_a_zombie_finalizes_counts_for_nothing() -> None:
    next_epoch = replace(record(Kind.EPOCH, {"node": "b"}), epoch=2, holder=b"n" * 16)
    fold = folded(GENESIS, EPOCH, next_epoch)
    assert fold.take(3, encode(record(Kind.BEAT, {"finalize": 2}))).outcome is Outcome.DEAD
    assert fold.finalized == versions.OLDEST


def test_a_kind_or_a_body_is_written_only_at_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.may_write(record(Kind.BEAT, {}), versions.OLDEST)
    newer = replace(record(Kind.BEAT, {}), version=VERSION + 1)
    assert not versions.may_write(newer, versions.SUPPORTED), "nobody has said what it needs"
    monkeypatch.setattr(versions, "NEEDS", {(Kind.BEAT, VERSION + 1): 2})
    assert (versions.may_write(newer, 1), versions.may_write(newer, 2)) == (False, True)


def test_the_nodes_that_cannot_read_a_version_are_named() -> None:
    supports = {"c": 1, "a": 2, "b": 3}
    assert versions.missing(1, supports) == {}
    assert versions.missing(3, supports) == {"a": 2, "c": 1}


def test_a_node_tells_what_it_supports_also_where_another_program_of_it_has_told_before() -> None:
    engine = MemoryEngine(Random(1), Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS)))
    engine.is_well = True
    engine.found(encode(GENESIS))
    older = Holding(0).facts("a")
    for name in ("supports", "finalized"):
        del older[name]
    engine.note(encode(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, body_of(older))))
    disk = MemoryDisk()
    replica = Replica.open(disk, BrokerSettings(segment_bytes=1 << 16), 0, CLUSTER)
    copy = OwnCopy("a", "http://a", Beginning(CLUSTER, {}), disk, str)

    def read_on() -> None:
        for one in engine.read(replica.fold.next_offset, 1 << 20):
            replica.take(one.offset, one.stored, 0)

    read_on()
    assert replica.fold.holdings.all()["a"].supports == versions.OLDEST
    told = copy.to_tell(replica, 0)
    assert told is not None
    engine.note(told)
    read_on()
    assert replica.fold.holdings.all()["a"].supports == versions.SUPPORTED
    assert copy.to_tell(replica, 1) is None
    replica.checkpoint(0)
    told = copy.to_tell(replica, 2)
    assert told is not None
    engine.note(told)
    found = look_for_copies(engine, CLUSTER, "b")
    assert (found.finalized, found.copies[0][1].supports) == (versions.OLDEST, versions.SUPPORTED)
    assert layout.read_durable(disk) == 0


@pytest.mark.parametrize(("finalized", "named"), [(1, ""), (2, "a")])
def test_an_epoch_record_names_its_node_only_at_its_version(finalized: int, named: str) -> None:
    engine = MemoryEngine(Random(1), Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS)))
    engine.is_well = True
    replica = Replica.open(MemoryDisk(), BrokerSettings(segment_bytes=1 << 16), 0, CLUSTER)
    replica.take(0, encode(record(Kind.GENESIS, {"finalized": finalized})), 0)
    replica.take(1, encode(EPOCH), 0)
    replica.lead(engine, 0, lambda: 0, "a")
    begun = [fact for one in replica.core.store._appended for fact in one.facts]
    assert [one.node for one in begun if isinstance(one, EpochBegun)] == [named]
