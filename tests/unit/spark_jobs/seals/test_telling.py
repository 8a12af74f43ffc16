"""What is told of changed books: identities mean what they were made of, and the sums come out."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.runs import Run, run_of
from spark_jobs.seals import seals
from spark_jobs.seals.identities import _ORDERS, Span, identities, order_id_of, stages_of, values_of
from tests.audit_runs import write_run

WINDOW_MS = 1_000
END_MS = 10 * WINDOW_MS
Order = dict[str, Any]

TIMES = ("placed_ms", "committed_ms", "paid_ms", "timed_out_ms", "cancelled_ms", "cleared_ms", "delivered_ms")
MOMENTS = st.integers(0, 2 * END_MS)
TEXTS = st.text(st.sampled_from("ab|\\\nps"), min_size=1, max_size=5)
ORDERS = st.fixed_dictionaries(
    {
        "customer_id": TEXTS,
        "total_pence": st.none() | st.integers(-(10**6), 10**6),
        "currency": st.sampled_from(["EUR", "JPY", "A|B"]),
        "due_ms": st.none() | MOMENTS,
        "placed_ms": MOMENTS,
        **{name: st.none() | MOMENTS for name in TIMES[1:]},
    }
)
BOOKS = st.dictionaries(TEXTS, ORDERS, max_size=6)


@given(BOOKS)
def test_an_identity_says_what_it_was_made_of(orders: dict[str, Order]) -> None:
    rows = pa.Table.from_pylist([one | {"order_id": key} for key, one in orders.items()], _ORDERS)
    for has_currency in (False, True):
        for stage in stages_of(has_currency):
            found = identities(ds.dataset(rows), stage, Span(0, 3 * END_MS, WINDOW_MS))
            for identity in found["identity"].to_pylist():
                order = orders[order_id_of(identity)]
                values = values_of(stage, identity)
                assert values == {name: order[name] for name in values}
                assert values


def run_with(out: Path, number: int, orders: dict[str, Order]) -> Run:
    folders = write_run(out, f"run{number}", has_currency=True)
    rows = [one | {"order_id": key} for key, one in orders.items()]
    pq.write_table(pa.Table.from_pylist(rows, _ORDERS), folders.orders / "part.parquet")
    return run_of(out, f"run{number}")


@settings(max_examples=40)
@given(BOOKS, BOOKS)
def test_what_all_windows_add_up_to_is_what_the_orders_say(
    before: dict[str, Order], after: dict[str, Order]
) -> None:
    """Books that stay, change, vanish, appear and are dated elsewhere: no amount is lost or counted twice."""
    before |= {"last": dict.fromkeys(TIMES) | {"currency": "EUR", "placed_ms": END_MS, "total_pence": 0}}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        first = min(one[name] for one in before.values() for name in TIMES if one[name] is not None)
        seals.seal(out, run_with(out, 1, before), WINDOW_MS, 0)
        found = seals.verify(out, run_with(out, 2, after))
    closed_ms = found.to_ms
    assert bool(closed_ms) == (first < closed_ms)
    expected: Counter[str] = Counter()
    for key in before.keys() | after.keys():
        old, new = before.get(key, {}), after.get(key, {})
        was_sealed = old.get("placed_ms", closed_ms) < closed_ms
        if was_sealed:
            expected[old["currency"]] -= old["total_pence"] or 0
        if new and (was_sealed or new["placed_ms"] < closed_ms):
            expected[new["currency"]] += new["total_pence"] or 0
    sums: Counter[str] = Counter()
    for window in found.changed:
        sums.update(window.sums)
        assert {one.order_id for one in window.differences} == {one.order_id for one in window.changes}
        assert all(one.words for one in window.differences), window.why
    assert {one: more for one, more in sums.items() if more} == {
        one: it for one, it in expected.items() if it
    }
