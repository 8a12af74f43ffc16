"""Tests that each message of an inner batch has its own queue offset."""

from __future__ import annotations

import struct
import zlib

import pytest

from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.inner_batch import message_count, pick
from commitlog.records.record import INNER_BATCH, Record
from consumequeue.dispatch import Dispatch
from consumequeue.entry import tags_code
from tests.memory_disk import MemoryDisk


def inner(body: bytes, **stored: str) -> bytes:
    tail = properties.encode(stored)
    rest = struct.pack(">IIii", 0, 0, 7, len(body)) + body + struct.pack(">H", len(tail)) + tail
    return struct.pack(">i", 4 + len(rest)) + rest


def batch(*, packed: bool = False, count: int = 2) -> Record:
    body = inner(b"first", UNIQ_KEY="A", TAGS="red") + inner(b"second", UNIQ_KEY="B", TAGS="blue")
    return Record(
        topic="batches",
        body=zlib.compress(body) if packed else body,
        properties=properties.encode({"INNER_NUM": str(count), "INNER_BASE": "5"}),
        sys_flag=INNER_BATCH | 0x40 | (1 if packed else 0),
        queue_offset=5,
        physical_offset=100,
    )


@pytest.mark.parametrize("packed", [False, True])
def test_each_queue_offset_means_one_message(packed: bool) -> None:
    second = pick(batch(packed=packed), 6)
    assert (second.body, second.queue_offset, second.flag, second.sys_flag) == (b"second", 6, 7, 0)
    assert properties.to_message(second).message_id == "B"
    assert pick(batch(packed=packed), 5).body == b"first"


def test_an_ordinary_record_is_its_own_message() -> None:
    plain = Record(topic="t", body=b"b", queue_offset=3)
    assert message_count(plain) == 1
    assert pick(plain, 3) is plain


def test_a_batch_gets_an_entry_for_each_message_with_its_own_tag() -> None:
    dispatch = Dispatch(MemoryDisk())
    dispatch.dispatch(batch(), 400)
    dispatch.dispatch(Record(topic="batches", body=b"x", queue_offset=7, physical_offset=500), 100)
    entries = dispatch.queue("batches", 0).get(5, 10)
    assert [one.physical_offset for one in entries] == [100, 100, 500]
    assert [one.tags_code for one in entries] == [tags_code("red"), tags_code("blue"), 0]


@pytest.mark.parametrize("cut", [0, 3, 20, 30])
def test_a_batch_that_holds_less_than_it_says_is_damage_of_those_messages(cut: int) -> None:
    torn = batch(count=3)
    with pytest.raises(StoreDamaged, match="queue offset 7"):
        pick(torn, 7)
    torn.body = torn.body[:cut]
    with pytest.raises(StoreDamaged):
        pick(torn, 5)
