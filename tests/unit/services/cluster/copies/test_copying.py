"""A node that needs another's copy asks for one after the other, and holds the trim meanwhile."""

from __future__ import annotations

from random import Random

import pytest

from services.cluster.copies.checkpoints import OwnCopy
from services.cluster.copies.copying import StoreCopier
from services.cluster.errors import CopyRefused
from sharedlog.engines import Beginning
from sharedlog.errors import EngineUnavailable, VersionUnsupported
from sharedlog.fold import Fold
from sharedlog.holdings import Holding
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.versions import OLDEST, SUPPORTED
from tests.genesis import genesis_of
from tests.memory_disk import MemoryDisk
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
EMPTY_HEAD = "http://127.0.0.1:9"


def record(kind: Kind, body: bytes = b"") -> bytes:
    return encode(SharedRecord(CLUSTER, kind, 0, NOBODY, 0, CHAIN_AT_GENESIS, body))


class Stage:
    """A node `a` without a copy, and a shared log in which others have told of theirs."""

    def __init__(self, *others: tuple[str, int], finalized: int = SUPPORTED, begins_at: int = 0) -> None:
        self.engine = MemoryEngine(Random(1))
        self.engine.is_well = True
        self.engine.create_log(encode(genesis_of(CLUSTER)))
        for node, next_record in others:
            held = Holding(next_record, 4_096, EMPTY_HEAD, finalized=finalized)
            self.engine.append_unchecked(record(Kind.CHECKPOINT, encode_facts(held.facts(node))))
        began = Beginning(CLUSTER, {"begins_at": begins_at})
        self.disk = MemoryDisk()
        own_copy = OwnCopy("a", "", began, self.disk, str)
        self.copying = StoreCopier("a", own_copy, began, self.engine, self.disk)

    def refused(self) -> str:
        """What is said where no copy is to be had."""
        with pytest.raises(CopyRefused) as raised:
            self.copying.fetch_copy(self.copying.find_copies())
        return str(raised.value)

    def fold(self) -> Fold:
        """All that the log says."""
        fold = Fold()
        for offset, stored in enumerate(self.engine.records):
            fold.apply_record(offset, stored)
        return fold


def test_the_newest_copy_is_asked_for_first_and_at_the_next_try_the_one_after_it() -> None:
    stage = Stage(("b", 1), ("c", 2))
    stage.engine.trim(1)
    first, second = stage.refused(), stage.refused()
    assert first.index("c:") < first.index("b:")
    assert second.index("b:") < second.index("c:")
    assert "begins at record 1" in first
    assert "does not answer" in first


def test_the_trim_is_held_where_the_copy_that_is_asked_for_reads_on() -> None:
    stage = Stage(("b", 2), ("c", 3))
    stage.engine.trim(1)
    stage.refused()
    held = stage.fold().holdings.of("a")
    assert held is not None
    assert (held.next_record, held.end) == (2, None)
    stage.copying.trim_log(stage.fold())
    assert stage.engine.first_offset == stage.copying.trimmed_below == 2


def test_a_trim_that_the_engine_does_not_take_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(("b", 2), ("c", 3))

    def fail(_: int) -> None:
        raise EngineUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(stage.engine, "trim", fail)
        stage.copying.trim_log(stage.fold())
    assert stage.copying.trimmed_below == 0
    stage.copying.trim_log(stage.fold())
    assert stage.copying.trimmed_below == 2


def test_without_another_s_copy_the_whole_log_is_read_if_it_is_whole() -> None:
    stage = Stage()
    stage.disk.write("commitlog/00000000000000000000", 0, b"spoiled")
    assert stage.copying.fetch_copy(stage.copying.find_copies()) == "the shared log, from its beginning"
    assert stage.disk.list("commitlog") == []
    assert "No other node has told" in Stage(begins_at=4_096).refused(), "what lies before is in no log"


@pytest.mark.parametrize("finalized", [OLDEST - 1, SUPPORTED + 1])
def test_a_copy_of_a_version_that_is_not_supported_is_not_fetched(finalized: int) -> None:
    stage = Stage(("b", 1), finalized=finalized)
    with pytest.raises(VersionUnsupported, match="No copy was fetched"):
        stage.copying.find_copies()
    assert len(stage.engine.records) == 2, "nothing was said"
