"""Which orders are looked at closely: without an entry in the ledger they may explain what a cart lacks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.books.book_rows import SPECIAL, specials
from spark_jobs.staging.order_facts import COUNTS

SCHEMA = pa.schema([
    ("order_id", pa.string()), ("committed_offset", pa.int64()), ("has_row", pa.bool_()),
    ("is_consumed", pa.bool_()), ("cleared_ms", pa.int64()), ("dead_letter_offset", pa.int64()),
    ("customer_id", pa.string()), *((name, pa.int64()) for name in COUNTS),
])  # fmt: skip
SOUND: dict[str, Any] = {
    "order_id": "o", "committed_offset": 5, "has_row": True, "is_consumed": True, "cleared_ms": 7,
    "customer_id": "c", **dict.fromkeys(COUNTS, 0),
}  # fmt: skip
NO_ENTRY = {"cleared_ms": None}
IRREGULAR = {"commits": 2, "is_consumed": False}


@pytest.mark.parametrize(
    ("changed", "has_carts", "is_unledgered"),
    [
        ({}, True, None),
        (NO_ENTRY, True, True),
        (NO_ENTRY, False, None),
        (NO_ENTRY | {"is_consumed": False}, True, None),
        (NO_ENTRY | {"committed_offset": None}, True, None),
        (NO_ENTRY | IRREGULAR, True, True),
        (IRREGULAR, True, False),
        ({"has_row": None}, True, False),
    ],
)
def test_an_order_without_an_entry_is_special_where_there_are_carts(
    changed: dict[str, Any], has_carts: bool, is_unledgered: bool | None
) -> None:
    found = specials(pa.Table.from_pylist([SOUND | changed], SCHEMA), has_carts)
    assert found.schema == SPECIAL
    assert found["is_unledgered"].to_pylist() == ([] if is_unledgered is None else [is_unledgered])
