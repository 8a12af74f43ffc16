"""The table of recent ids, against a dictionary: it may name too many offsets, never too few."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumequeue.indexes.keyindex import ENTRY
from services.broker.spine import recent_ids
from services.broker.spine.recent_ids import RecentIds

STEP = 100
"""Bytes between two records."""


def table(since_offset: int = 0, durable_offset: int = 1 << 60) -> RecentIds:
    return RecentIds(since_offset, lambda: durable_offset)


def entries(pairs: list[tuple[int, int]]) -> Any:
    return np.array(pairs, ENTRY)


@pytest.fixture(autouse=True)
def _few_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_ids, "BUCKET_BITS_MIN", 3)
    monkeypatch.setattr(recent_ids, "BUCKET_BITS_MAX", 3)


def hashes(seed: int, count: int) -> list[int]:
    """Some ids: of a few buckets, so that these overflow, now and then one that was there before."""
    chance, found = Random(seed), list[int]()
    for _ in range(count):
        again = found and chance.random() < 0.2
        found.append(chance.choice(found) if again else chance.getrandbits(64))
    return found


def put(ids: RecentIds, id_hash: int, offset: int) -> None:
    """Put an id, and settle now and then."""
    ids.put(digest(id_hash), offset)
    if len(ids.newest) >= 3:
        ids.flush_newest_ids()


def digest(id_hash: int) -> bytes:
    return id_hash.to_bytes(8, "little")


@pytest.mark.parametrize(("bits_min", "bits_max"), [(3, 3), (0, 5), (0, 7)])
@given(st.integers(0, 1 << 30), st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_every_live_id_is_found_at_all_its_offsets(
    bits_min: int, bits_max: int, seed: int, filled: int, count: int, is_far: bool
) -> None:
    recent_ids.BUCKET_BITS_MIN, recent_ids.BUCKET_BITS_MAX = bits_min, bits_max  # `_few_buckets` undoes it
    chance, start = Random(seed), (1 << 41) + 7 if is_far else 0
    found, ids = hashes(seed, filled + count), table(start)
    stored: defaultdict[int, list[int]] = defaultdict(list)
    chunks = [(one, start + STEP * number) for number, one in enumerate(found[:filled])]
    chance.shuffle(chunks)
    ids.fill([entries(chunks[:10]), entries(chunks[10:])])
    for one, offset in chunks:
        stored[one].append(offset)
    since = start
    for number, one in enumerate(found[filled:], filled):
        offset = start + STEP * number
        put(ids, one, offset)
        stored[one].append(offset)
        if chance.random() < 0.1:
            since = max(since, offset - STEP * chance.randrange(40))
            ids.expire_before(since)
        for known, offsets in stored.items():
            live = {one for one in offsets if one >= since}
            assert live <= set(ids.offsets(digest(known)))
            assert not live or ids.may_hold(digest(known))
    assert ids.since_offset == since
    assert not ids.is_incomplete


def test_an_id_that_was_never_put_is_not_there() -> None:
    ids = table()
    for one in range(1, 9):
        put(ids, one << 40 | 1, STEP * one)
    ids.flush_newest_ids()
    assert not ids.may_hold(digest(9 << 40 | 1))
    assert ids.offsets(digest(9 << 40 | 1)) == []
    assert ids.offsets(digest(2 << 40 | 1)) == [2 * STEP]
    assert ids.overflow_count == 4


def test_a_table_that_grows_keeps_what_is_live_and_asks_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_ids, "BUCKET_BITS_MIN", 13)
    monkeypatch.setattr(recent_ids, "BUCKET_BITS_MAX", 19)
    chance, ids = np.random.default_rng(1), table()
    known = chance.integers(0, 1 << 64, 60_000, np.uint64)
    for first in range(0, len(known), 3_000):
        part = known[first : first + 3_000].tolist()
        ids.fill([entries([(one, STEP * number) for number, one in enumerate(part, first)])])
    ids.expire_before(STEP * 20_000)
    ids.fill([entries([(one, STEP * number) for number, one in enumerate(known[:40_000].tolist(), 60_000)])])
    assert ids._bits == 17
    assert ids.overflow_count < 1_000
    offsets = [ids.offsets(digest(one)) for one in known.tolist()]
    assert all(STEP * (number + 60_000) in offsets[number] for number in range(40_000))
    assert all(STEP * number in offsets[number] for number in range(20_000, 60_000))
    others = chance.integers(0, 1 << 64, 20_000, np.uint64).tolist()
    assert sum(ids.may_hold(digest(one)) for one in others) < 20


def test_a_live_id_is_never_overwritten_and_a_spilled_one_outlives_its_bucket() -> None:
    ids = table()
    for number in range(5):
        put(ids, number << 40, STEP * number)
    ids.flush_newest_ids()
    ids.expire_before(4 * STEP)
    assert ids.offsets(digest(4 << 40)) == [4 * STEP]
    assert ids.may_hold(digest(4 << 40))
    put(ids, 9 << 40, 5 * STEP)
    ids.flush_newest_ids()
    assert ids.overflow_count == 1
    ids.expire_before(5 * STEP)
    assert ids.overflow_count == 0
    assert ids.offsets(digest(9 << 40)) == [5 * STEP]


@pytest.mark.parametrize("is_filled", [False, True])
def test_spilled_ids_are_bounded_and_the_index_is_asked_until_those_dropped_are_dead(
    monkeypatch: pytest.MonkeyPatch, is_filled: bool
) -> None:
    monkeypatch.setattr(recent_ids, "RECENT_IDS_SPILLED_MAX", 3)
    ids, pairs = table(), [(number << 40, STEP * number) for number in range(12)]
    if is_filled:
        ids.fill([entries(pairs)])
    else:
        for pair in pairs:
            put(ids, *pair)
    assert ids.overflow_count == 3
    assert ids.is_incomplete
    assert all(ids.may_hold(digest(id_hash)) for id_hash, _ in pairs)
    ids.expire_before(8 * STEP)
    assert ids.is_incomplete
    ids.expire_before(12 * STEP)
    assert not ids.is_incomplete


def test_what_is_not_durable_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_ids, "RECENT_IDS_SPILLED_MAX", 3)
    ids = table(durable_offset=0)
    for number in range(12):
        put(ids, number << 40, STEP * number)
    assert not ids.is_incomplete
    assert all(ids.offsets(digest(number << 40)) == [STEP * number] for number in range(12))


def test_the_origin_follows_a_log_that_grows_beyond_what_a_slot_can_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent_ids, "_SHIFT_ABOVE", 10 * STEP)
    ids, chance = table(), Random(1)
    for number in range(1_000):
        id_hash = chance.getrandbits(64)
        put(ids, id_hash, STEP * number)
        ids.expire_before(max(ids.since_offset, STEP * (number - 20)))
        assert ids.offsets(digest(id_hash)) == [STEP * number]
    assert ids._origin > 900 * STEP
