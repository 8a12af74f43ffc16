"""Tests that the finalized version of a cluster is stored, never decreases, and stops older programs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random

import pytest

from commitlog import layout
from commitlog.facts.facts import EpochBegun
from services.broker.spine.settings import BrokerSettings
from services.cluster.copies.checkpoints import OwnCopy, find_copies
from services.cluster.replica import Replica
from sharedlog import versions
from sharedlog.engine import Head
from sharedlog.engines import Beginning
from sharedlog.errors import Halted, VersionUnsupported
from sharedlog.fold import Fold, Outcome, Position
from sharedlog.holdings import Holding
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, VERSION, Kind, SharedRecord, encode, encode_facts
from tests.genesis import genesis_of
from tests.memory_disk import MemoryDisk
from tests.memory_engine import MemoryEngine

CLUSTER, ME = b"c" * 16, b"m" * 16


def record(kind: Kind, facts: dict[str, object]) -> SharedRecord:
    """Return a record for an empty history in epoch 1. The epoch of a GENESIS record is 0."""
    epoch, holder = (0, NOBODY) if kind is Kind.GENESIS else (1, ME)
    return SharedRecord(
        CLUSTER, kind, epoch, holder, 0, CHAIN_AT_GENESIS, encode_facts(facts) if facts else b""
    )


def folded(*records: SharedRecord) -> Fold:
    """Return a fold that has applied the given records."""
    fold = Fold(CLUSTER)
    for offset, one in enumerate(records):
        assert fold.apply_record(offset, encode(one)).outcome is not Outcome.DEAD
    return fold


GENESIS, EPOCH = genesis_of(CLUSTER), record(Kind.EPOCH, {"node": "a"})
NEWER = versions.SUPPORTED + 1


def test_a_beat_raises_the_version_of_the_genesis_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    assert folded(GENESIS, EPOCH).finalized == versions.SUPPORTED
    monkeypatch.setattr(versions, "SUPPORTED", NEWER)
    raised = folded(GENESIS, EPOCH, record(Kind.BEAT, {"finalize": NEWER}))
    assert raised.finalized == NEWER
    raised.apply_record(3, encode(record(Kind.BEAT, {"finalize": NEWER - 1})))
    raised.apply_record(4, encode(record(Kind.BEAT, {"of a newer program": 7, "clock_ms": 1})))
    assert raised.finalized == NEWER
    assert Fold.thaw(json.loads(json.dumps(raised.freeze()))).finalized == NEWER


@pytest.mark.parametrize("said", [{}, {"finalized": 1}, {"finalized": versions.OLDEST - 1}])
def test_a_cluster_from_before_the_first_release_is_refused_with_the_way(said: dict[str, object]) -> None:
    why = r"from before the first release .*store export FOLDER .*store import FOLDER --store NEW"
    with pytest.raises(VersionUnsupported, match=why):
        folded(record(Kind.GENESIS, said))
    with pytest.raises(VersionUnsupported, match=why):
        Fold.thaw(folded(GENESIS, EPOCH).freeze() | {"finalized": said.get("finalized", 0)})
    engine = MemoryEngine(Random(1), Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS)))
    engine.is_well = True
    engine.create_log(encode(record(Kind.GENESIS, said)))
    held = {name: told for name, told in Holding(1, 8).facts("b").items() if name != "finalized"} | said
    engine.append_unchecked(encode(record(Kind.CHECKPOINT, held)))
    assert re.search(why, versions.describe_unsupported(find_copies(engine, CLUSTER, "a").finalized))


def test_a_program_that_does_not_support_the_clusters_version_halts_where_it_reads_of_it() -> None:
    why = f"finalized version is {NEWER}, and this program supports up to {versions.SUPPORTED}: install"
    with pytest.raises(Halted, match=why):
        folded(record(Kind.GENESIS, {"finalized": NEWER}))
    fold = folded(GENESIS, EPOCH)
    for _ in range(2):  # A fold that has halted does not accept further records.
        with pytest.raises(Halted, match=why):
            fold.apply_record(2, encode(record(Kind.BEAT, {"finalize": NEWER})))
    frozen = folded(GENESIS, EPOCH).freeze()
    with pytest.raises(Halted, match=why):
        Fold.thaw(frozen | {"finalized": NEWER})


def test_what_a_zombie_finalizes_counts_for_nothing() -> None:
    next_epoch = replace(record(Kind.EPOCH, {"node": "b"}), epoch=2, holder=b"n" * 16)
    fold = folded(GENESIS, EPOCH, next_epoch)
    assert fold.apply_record(3, encode(record(Kind.BEAT, {"finalize": NEWER}))).outcome is Outcome.DEAD
    assert fold.finalized == versions.SUPPORTED


def test_a_kind_or_a_body_is_written_only_at_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.may_write(record(Kind.BEAT, {}), versions.OLDEST)
    newer = replace(record(Kind.BEAT, {}), version=VERSION + 1)
    assert not versions.may_write(newer, versions.SUPPORTED), "nobody has said what it needs"
    monkeypatch.setattr(versions, "NEEDS", {(Kind.BEAT, VERSION + 1): NEWER})
    assert not versions.may_write(newer, NEWER - 1)
    assert versions.may_write(newer, NEWER)


def test_the_nodes_that_cannot_read_a_version_are_named() -> None:
    supports = {"c": 1, "a": 2, "b": 3}
    assert versions.nodes_without_support(1, supports) == {}
    assert versions.nodes_without_support(3, supports) == {"a": 2, "c": 1}


def test_a_node_tells_what_it_supports_also_where_another_program_of_it_has_told_before() -> None:
    engine = MemoryEngine(Random(1), Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS)))
    engine.is_well = True
    engine.create_log(encode(GENESIS))
    older = Holding(0).facts("a")
    for name in ("supports", "finalized"):
        del older[name]
    engine.append_unchecked(encode(SharedRecord(CLUSTER, Kind.HOLD, 0, NOBODY, 0, 0, encode_facts(older))))
    disk = MemoryDisk()
    replica = Replica.open(disk, BrokerSettings(segment_bytes=1 << 16), 0, CLUSTER)
    copy = OwnCopy("a", "http://a", Beginning(CLUSTER, {}), disk, str)

    def read_on() -> None:
        for one in engine.read(replica.fold.next_offset, 1 << 20):
            replica.apply_next_record(one.offset, one.stored, 0)

    read_on()
    assert replica.fold.holdings.all()["a"].supports == versions.UNSAID
    told = copy.checkpoint_announcement(replica, 0)
    assert told is not None
    engine.append_unchecked(told)
    read_on()
    assert replica.fold.holdings.all()["a"].supports == versions.SUPPORTED
    assert copy.checkpoint_announcement(replica, 1) is None
    replica.checkpoint(0)
    told = copy.checkpoint_announcement(replica, 2)
    assert told is not None
    engine.append_unchecked(told)
    found = find_copies(engine, CLUSTER, "b")
    assert (found.finalized, found.copies[0][1].supports) == (versions.SUPPORTED, versions.SUPPORTED)
    assert layout.read_durable(disk) == 0


def test_an_epoch_record_names_its_node_and_the_version() -> None:
    engine = MemoryEngine(Random(1), Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS)))
    engine.is_well = True
    replica = Replica.open(MemoryDisk(), BrokerSettings(segment_bytes=1 << 16), 0, CLUSTER)
    replica.apply_next_record(0, encode(GENESIS), 0)
    replica.apply_next_record(1, encode(EPOCH), 0)
    replica.start_leading(engine, 0, lambda: 0, "a")
    begun = [fact for one in replica.core.store._appended for fact in one.facts]
    assert [one for one in begun if isinstance(one, EpochBegun)] == [EpochBegun(1, "a", versions.SUPPORTED)]
