"""A stream whose checkpoint has outlived its log: an error that says both, or, if so told, it goes on.

The reader is taken through Spark's steps without Spark; tests/spark has the same with a session.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog import layout
from commitlog.log.published_log import open_log
from spark_jobs.errors import StreamLost
from spark_jobs.main import check_same_log
from spark_jobs.positions import Position
from tests.spark.streaming import Steps, Writer
from tidewheel.errors import TidewheelError

GO_ON = {"failOnDataLoss": "false"}


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """A log of 20 records."""
    written = Writer(tmp_path / "store")
    written.append(20)
    return written


@pytest.fixture
def query() -> Steps:
    return Steps()


def wiped_and_longer(writer: Writer) -> None:
    writer.wipe()
    writer.append(50)


def wiped_and_shorter(writer: Writer) -> None:
    writer.wipe()
    writer.append(3)


def wiped_and_empty(writer: Writer) -> None:
    writer.wipe()


def put_back_and_longer(writer: Writer) -> None:
    writer.put_back(writer.store.with_name("older"))
    writer.append(50)


def put_back_and_shorter(writer: Writer) -> None:
    writer.put_back(writer.store.with_name("older"))


def node_replaced_and_longer(writer: Writer) -> None:
    wiped_and_longer(writer)
    (writer.store / layout.CLUSTER).write_text("{}")


def node_replaced_and_not_in_step(writer: Writer) -> None:
    wiped_and_longer(writer)
    (writer.store / layout.CLUSTER).write_text("{}")
    layout.reset_durable(writer.disk, 0)


Fate = Callable[[Writer], None]
ANOTHER, SHORTER = "has another log than the one that was read", "its log ends at"
FATES = [
    (wiped_and_longer, ANOTHER),
    (wiped_and_shorter, SHORTER),
    (wiped_and_empty, SHORTER),
    (put_back_and_longer, ANOTHER),
    (put_back_and_shorter, SHORTER),
    (node_replaced_and_longer, ANOTHER),
    (node_replaced_and_not_in_step, SHORTER),
]
NAMES = [fate.__name__ for fate, _ in FATES]


@pytest.mark.parametrize(("fate", "says"), FATES, ids=NAMES)
@pytest.mark.parametrize("is_planned", [False, True], ids=["committed", "planned"])
def test_a_checkpoint_of_another_log_is_an_error_that_names_both(
    writer: Writer, query: Steps, fate: Fate, says: str, is_planned: bool
) -> None:
    writer.copy("older")
    writer.append(20)
    query.drain(writer.store)
    offset = writer.log.durable_offset
    if is_planned:
        query.forget_last_batch()
    fate(writer)
    for _ in range(2):  # once more is no way around it
        with pytest.raises(TidewheelError, match=says) as raised:
            query.drain(writer.store)
    assert str(offset) in str(raised.value)
    assert str(layout.read_durable(writer.disk)) in str(raised.value)
    assert str(writer.store) in str(raised.value)
    assert "failOnDataLoss=false" in str(raised.value)
    assert query.arrived() == ([] if is_planned else list(range(40)))


@pytest.mark.parametrize(("fate", "says"), FATES[:-1], ids=NAMES[:-1])
@pytest.mark.filterwarnings("ignore:failOnDataLoss")
@pytest.mark.parametrize("is_planned", [False, True], ids=["committed", "planned"])
def test_told_to_go_on_it_reads_the_log_that_is_there_and_says_what_is_gone(
    writer: Writer, query: Steps, fate: Fate, says: str, is_planned: bool
) -> None:
    older = list(range(20))
    writer.copy("older")
    writer.append(20)
    query.drain(writer.store)
    before = [] if is_planned else query.arrived()
    offset = writer.log.durable_offset
    if is_planned:
        query.forget_last_batch()
    fate(writer)
    for _ in range(2):
        query.drain(writer.store, **GO_ON)
    there = [*(older if "put_back" in fate.__name__ else []), *range(40, writer.count)]
    assert query.arrived() == sorted(before + there)
    gone = query.damage()
    assert says in gone[-1].damage
    assert gone[-1].physical_offset + gone[-1].record_bytes == offset
    writer.append(5)
    query.drain(writer.store)
    assert query.arrived() == sorted(before + there + list(range(writer.count - 5, writer.count)))
    assert query.damage() == gone


@pytest.mark.filterwarnings("ignore:failOnDataLoss")
def test_what_retention_deleted_unread_is_an_error_or_damage(writer: Writer, query: Steps) -> None:
    query.drain(writer.store)
    offset = writer.log.durable_offset
    writer.append(60)
    first_offset = writer.retain(2)
    with pytest.raises(TidewheelError, match=f"begins at {first_offset}") as raised:
        query.drain(writer.store)
    assert str(offset) in str(raised.value)
    query.drain(writer.store, **GO_ON)
    (gone,) = query.damage()
    assert (gone.physical_offset, gone.record_bytes) == (offset, first_offset - offset)
    arrived = query.arrived()
    assert arrived[:20] == list(range(20))
    assert arrived[20:] == list(range(arrived[20], 80))
    assert arrived[20] > 20


@pytest.mark.filterwarnings("ignore:failOnDataLoss")
def test_a_planned_batch_that_retention_deleted_is_an_error_or_damage(writer: Writer, query: Steps) -> None:
    query.drain(writer.store)
    query.forget_last_batch()
    end_offset = writer.log.durable_offset
    writer.append(60)
    first_offset = writer.retain(2)
    with pytest.raises(TidewheelError, match=f"begins at {first_offset}"):
        query.drain(writer.store)
    query.drain(writer.store, **GO_ON)
    gone = [(row.physical_offset, row.physical_offset + row.record_bytes) for row in query.damage()]
    assert gone == [(0, end_offset), (end_offset, first_offset)]


def test_a_first_batch_that_retention_cuts_before_it_is_committed_is_an_error(
    writer: Writer, query: Steps
) -> None:
    query.drain(writer.store)
    query.forget_last_batch()
    first_offset = writer.retain(1)
    with pytest.raises(TidewheelError, match=f"begins at {first_offset}"):
        query.drain(writer.store)


def test_the_same_log_elsewhere_is_no_loss(writer: Writer, query: Steps) -> None:
    query.drain(writer.store, max_bytes_per_trigger=700)
    writer.append(20)
    copied = writer.copy("moved")
    query.drain(copied)
    writer.append(20)
    query.drain(writer.store)
    assert query.arrived() == list(range(60))
    assert query.damage() == []


def test_retention_behind_the_checkpoint_is_no_loss(writer: Writer, query: Steps) -> None:
    query.drain(writer.store)
    writer.retain(1)
    writer.append(20)
    query.drain(writer.store)
    assert query.arrived() == list(range(40))


def test_a_node_that_was_started_again_and_tells_less_is_waited_for(writer: Writer, query: Steps) -> None:
    (writer.store / layout.CLUSTER).write_text("{}")
    query.drain(writer.store)
    offset = writer.log.durable_offset
    for told in (0, offset // 2):
        layout.reset_durable(writer.disk, told)
        query.drain(writer.store)
    layout.reset_durable(writer.disk, offset)
    writer.append(20)
    query.drain(writer.store)
    assert query.arrived() == list(range(40))
    assert query.damage() == []


def test_a_checkpoint_of_before_goes_on_and_is_checked_from_then_on(writer: Writer, query: Steps) -> None:
    query.drain(writer.store)
    query.planned[-1] = json.dumps({"offset": writer.log.durable_offset})
    writer.append(10)
    query.drain(writer.store)
    assert query.arrived() == list(range(30))
    wiped_and_longer(writer)
    with pytest.raises(TidewheelError, match=ANOTHER):
        query.drain(writer.store)


@pytest.mark.parametrize(("fate", "says"), FATES, ids=NAMES)
def test_an_audit_whose_store_is_replaced_meanwhile_is_an_error(
    writer: Writer, fate: Fate, says: str
) -> None:
    writer.copy("older")
    writer.append(20)
    position = Position.at_end_of(open_log(writer.store))
    writer.append(20)
    check_same_log(writer.store, position)
    fate(writer)
    with pytest.raises(StreamLost, match=f"{says}.*run the audit again"):
        check_same_log(writer.store, position)
