"""Tests the lite index against a list of messages."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commitlog.errors import StoreDamaged
from consumequeue import lite_index
from consumequeue.entry import ENTRY_BYTES, Entry, hash_lite_topic
from consumequeue.lite_index import LiteIndex
from consumequeue.queue import ConsumeQueue
from tests.memory_disk import MemoryDisk

RECORD_BYTES = 100
FILE_ENTRIES = 4


def retire(queue: ConsumeQueue, count: int) -> None:
    """Delete the first entries, as retention does."""
    queue.advance_first_offset(queue.first_from(RECORD_BYTES * count))
    queue.write_tail_before_deletion()
    queue.deleted(queue.deletable_files())


names = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), names),
        st.tuples(st.just("trim"), st.integers(0, 30)),
        st.tuples(st.just("reach"), st.integers(0, 30)),
        st.tuples(st.just("retire"), st.integers(0, 30)),
        st.tuples(st.just("write"), st.none()),
        st.tuples(st.just("look"), st.none()),
    )
)


@given(steps)
@example([("put", "a")] * 5 + [("write", None), ("retire", 4), ("look", None)])
def test_an_index_agrees_with_a_list(script: list[tuple[str, object]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("consumequeue.queue._FILE_BYTES", FILE_ENTRIES * ENTRY_BYTES)
        follow(script)


def follow(script: list[tuple[str, object]]) -> None:
    queue = ConsumeQueue(MemoryDisk(), "t", 0)
    index, stored, floor = LiteIndex(queue), [], 0
    for action, argument in script:
        if action == "put":
            queue.put(len(stored), Entry(RECORD_BYTES * len(stored), RECORD_BYTES, hash_lite_topic(argument)))
            stored.append(argument)
        elif action == "retire":
            retire(queue, min(argument, len(stored)))
        elif action == "trim":
            index.trim(min(argument, len(stored)))
            floor = max(floor, min(argument, len(stored)))
        elif action == "reach":
            index.reach(argument)
            floor = min(floor, argument)
        elif action == "write":
            queue.write()
        else:
            agrees(index, queue, stored, max(floor, queue.min_offset))


def agrees(index: LiteIndex, queue: ConsumeQueue, stored: list[str], floor: int) -> None:
    for name in ("a", "b", "c"):
        offsets = [at for at, one in enumerate(stored) if one == name]
        for offset in range(floor, len(stored) + 1):
            expected = next((at for at in offsets if at >= offset), None)
            assert index.next(hash_lite_topic(name), offset) == expected
        kept = [at for at in offsets if at >= queue.min_offset]
        assert not kept or hash_lite_topic(name) in index


def test_what_lies_between_is_found_below_the_floor_too() -> None:
    queue = ConsumeQueue(MemoryDisk(), "t", 0)
    for at in range(10):
        queue.put(at, Entry(RECORD_BYTES * at, RECORD_BYTES, hash_lite_topic("ab"[at % 2])))
    index = LiteIndex(queue)
    index.read_on()
    index.trim(8)
    assert list(index.between(hash_lite_topic("a"), 2, 7)) == [2, 4, 6]
    retire(queue, 5)
    assert list(index.between(hash_lite_topic("a"), 0, 10)) == [6, 8]


def test_a_lite_topic_is_gone_with_its_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite_index, "_TRIM_EVERY", 2)
    queue = ConsumeQueue(MemoryDisk(), "t", 0)
    index = LiteIndex(queue)
    for at, name in enumerate(["a", "a", "b"]):
        queue.put(at, Entry(RECORD_BYTES * at, RECORD_BYTES, hash_lite_topic(name)))
    assert (len(index), index.is_long) == (2, True)
    retire(queue, 2)
    index.trim(2)
    assert (len(index), index.is_long) == (1, False)
    assert hash_lite_topic("a") not in index


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_index_comes_to_its_end_once_a_damaged_file_is_cut_off(
    is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", FILE_ENTRIES * ENTRY_BYTES)
    disk, count = MemoryDisk(), 4 * FILE_ENTRIES
    queue = ConsumeQueue(disk, "t", 0)
    for at in range(count):
        queue.put(at, Entry(RECORD_BYTES * at, RECORD_BYTES, hash_lite_topic("a")))
    queue.write()
    first = f"consumequeue/t/0/{0:020d}"
    disk.delete(first) if is_gone else disk.flip_bit(first, 8)
    index = LiteIndex(queue)
    with pytest.raises(StoreDamaged):
        index.read_on()
    retire(queue, FILE_ENTRIES + 1)
    assert queue.min_offset == FILE_ENTRIES + 1
    assert index.next(hash_lite_topic("a"), 0) == FILE_ENTRIES + 1
    assert [*index.between(hash_lite_topic("a"), 0, count)] == [*range(FILE_ENTRIES + 1, count)]
