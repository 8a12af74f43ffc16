"""Ranges out of many records of acknowledgements at once: what decoding them one by one says."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.facts import acks
from commitlog.facts.acks import MessagesFinished
from spark_jobs.staging.ack_records import acks_table
from spark_jobs.staging.events import QUEUE_BITS

ACTING = {"created": "shop", "päid": "shop", "other": "clerk"}
NUMBERS = {"created": 0, "päid": 2, "other": 1}

ranges = st.lists(st.tuples(st.integers(0, 1 << 39), st.integers(1, 1 << 31)), max_size=4)
entries = st.builds(
    MessagesFinished,
    st.sampled_from(["shop", "clerk", "sho", ""]),
    st.sampled_from(["created", "päid", "other", "nothing"]),
    st.integers(0, 0xFFFF),
    ranges,
    st.booleans(),
)


def batch(bodies: list[bytes], first: int) -> pa.RecordBatch:
    offsets = range(first, first + len(bodies))
    columns = {"physical_offset": offsets, "store_ms": [7 * at for at in offsets], "body": bodies}
    types = {"physical_offset": pa.int64(), "store_ms": pa.int64(), "body": pa.binary()}
    return pa.RecordBatch.from_pydict(columns, pa.schema(types.items()))


def one_by_one(bodies: list[bytes]) -> list[tuple[int, ...]]:
    return [
        (NUMBERS[topic], queue_id << QUEUE_BITS | first, (queue_id << QUEUE_BITS | first) + count, at, 7 * at)
        for at, body in enumerate(bodies)
        for group, topic, queue_id, found, is_passed in acks.decode(body)
        if ACTING.get(topic) == group and not is_passed
        for first, count in found
    ]


@given(st.lists(st.lists(entries, max_size=5), min_size=1, max_size=12))
def test_ranges_are_what_decoding_one_by_one_says(written: list[list[MessagesFinished]]) -> None:
    bodies = [acks.encode(one) for one in written]
    table = acks_table([batch(bodies[:3], 0), batch(bodies[3:], len(bodies[:3]))], ACTING, NUMBERS)
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert rows == one_by_one(bodies)


def test_no_records_are_no_rows() -> None:
    assert len(acks_table([], ACTING, NUMBERS)) == 0


def test_a_body_that_ends_early_is_told() -> None:
    body = acks.encode([MessagesFinished("shop", "created", 1, [(5, 2)])])
    with pytest.raises(ValueError, match="end within"):
        acks_table([batch([body, body[:-3]], 0)], ACTING, NUMBERS)
