"""Which folder is a store, and where its log starts and stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog import layout, store_format
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import NotAStore, StoreError, StoreTooNew
from commitlog.log.published_log import open_log
from commitlog.records.record import Record

WriteLog = Callable[..., Path]


@pytest.fixture
def store(write_log: WriteLog) -> Path:
    return write_log([Record(topic="t", body=b"x")])


def test_a_log_knows_its_bounds(store: Path) -> None:
    log = open_log(store)
    assert log.first_offset == 0
    assert log.end_offset == log.durable_offset == layout.parse_durable((store / layout.DURABLE).read_bytes())
    assert log.ours


def test_a_missing_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="does not exist"):
        open_log(tmp_path / "nowhere")


def test_a_foreign_folder_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(NotAStore, match="has no folder 'commitlog'"):
        open_log(tmp_path)


def test_a_newer_format_is_refused(store: Path) -> None:
    (store / layout.FORMAT).write_text(f"tidewheel {store_format.VERSION + 1}\n")
    with pytest.raises(StoreTooNew, match=f"format {store_format.VERSION + 1}"):
        open_log(store)


def test_an_unreadable_format_is_refused(store: Path) -> None:
    (store / layout.FORMAT).write_bytes(b"\xff\x00one")
    with pytest.raises(NotAStore, match="format file"):
        open_log(store)


def test_an_empty_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / layout.FORMAT).write_text("tidewheel 1\n")
    with pytest.raises(StoreError, match="holds no records"):
        open_log(tmp_path)


def test_of_a_node_only_what_it_has_told_is_read(store: Path) -> None:
    """Sound bytes may lie behind that which its cluster never accepted."""
    end_offset = open_log(store).end_offset
    for told in (layout.durable_lines(0), b"damaged", None):
        (store / layout.CLUSTER).write_text("{}")
        (store / layout.DURABLE).unlink()
        if told is not None:
            (store / layout.DURABLE).write_bytes(told)
        with pytest.raises(StoreError, match="a node's, which has told of no record"):
            open_log(store)
        (store / layout.CLUSTER).unlink()
        assert open_log(store).end_offset >= end_offset, "of a broker alone the sound records count"
        (store / layout.DURABLE).write_bytes(layout.durable_lines(0))
    (store / layout.CLUSTER).write_text("{}")
    disk = RealDisk(store)
    layout.publish_accepted(disk, end_offset, 1)
    layout.publish_epoch(disk, 7, 1)
    disk.close()
    log = open_log(store)
    assert (log.end_offset, log.durable_offset, log.epoch) == (end_offset, end_offset, 7)


def test_preallocated_segments_of_a_foreign_broker_are_not_read(store: Path) -> None:
    (store / layout.FORMAT).unlink()
    (store / layout.DURABLE).unlink()
    (store / layout.COMMITLOG / f"{64 * 1024:020d}").write_bytes(bytes(64 * 1024))
    log = open_log(store)
    assert not log.ours
    assert [segment.first_offset for segment in log.segments] == [0]


def test_an_unreadable_durable_offset_does_not_hide_the_log(store: Path) -> None:
    (store / layout.DURABLE).write_bytes(b"\x00garbage")
    log = open_log(store)
    assert log.durable_offset is None
    assert log.end_offset == 64 * 1024
