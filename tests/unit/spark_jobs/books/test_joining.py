"""One bucket of the books, joined: against loops over rows, and what is special about ids and nulls."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.books.joining import CLEARED, cleared_once, joined
from spark_jobs.staging.order_facts import Fact

FACTS = tuple(Fact(name, (), (), "", name) for name in ("min", "max", "sum", "bit_xor"))
FACT_ROWS = pa.schema([("order_id", pa.string()), *((fact.name, pa.int64()) for fact in FACTS)])
ROWS = pa.schema([("order_id", pa.string()), ("status", pa.string())])

ids = st.sampled_from("abcdef")
numbers = st.integers(-(1 << 40), 1 << 40)
fact_rows = st.lists(
    st.fixed_dictionaries({
        "order_id": ids,
        **dict.fromkeys(("min", "max"), st.none() | numbers),
        **dict.fromkeys(("sum", "bit_xor"), numbers),
    })
)  # fmt: skip
statuses = st.dictionaries(ids, st.none() | st.text(max_size=3))


def merged(rows: list[dict[str, Any]], order_id: str) -> dict[str, int | None]:
    mine = [row for row in rows if row["order_id"] == order_id]
    firsts = [row["min"] for row in mine if row["min"] is not None]
    lasts = [row["max"] for row in mine if row["max"] is not None]
    xor = 0
    for row in mine:
        xor ^= row["bit_xor"]
    return {
        "min": min(firsts, default=None),
        "max": max(lasts, default=None),
        "sum": sum(row["sum"] for row in mine) if mine else None,
        "bit_xor": xor if mine else None,
    }


@given(fact_rows, statuses, statuses)
def test_every_id_of_facts_and_rows_has_one_row(
    facts: list[dict[str, Any]], rows: dict[str, str | None], others: dict[str, str | None]
) -> None:
    side = pa.table([list(rows), list(rows.values())], schema=ROWS)
    other = pa.table([list(others), list(others.values())], schema=ROWS).rename_columns(["order_id", "other"])
    found = joined(pa.Table.from_pylist(facts, FACT_ROWS), FACTS, side, other).to_pylist()
    wanted = {row["order_id"] for row in facts} | rows.keys() | others.keys()
    assert sorted(row["order_id"] for row in found) == sorted(wanted)
    for row in found:
        one = row["order_id"]
        assert row == {
            "order_id": one, **merged(facts, one), "status": rows.get(one), "other": others.get(one),
        }  # fmt: skip


def test_a_side_that_has_an_id_twice_is_a_fault_of_ours() -> None:
    twice = pa.table([["a", "a"], ["x", "y"]], schema=ROWS)
    with pytest.raises(AssertionError, match="twice"):
        joined(FACT_ROWS.empty_table(), FACTS, twice)


def test_an_order_cleared_in_several_files_was_cleared_at_the_first_and_for_both_customers() -> None:
    entries = pa.table(
        [["a", "b", "a", "c"], [7, None, 3, 1], ["m", "n", "k", "o"], ["m", "n", "k", "o"]], schema=CLEARED
    )
    found = {row["order_id"]: list(row.values())[1:] for row in cleared_once(entries).to_pylist()}
    assert found == {"a": [3, "k", "m"], "b": [0, "n", "n"], "c": [1, "o", "o"]}
