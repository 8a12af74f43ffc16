"""Tests that rows copied later have the state at the time of the capture."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitlog.snapshots.deferred_rows import NOTHING, DeferredRows
from commitlog.snapshots.snapshot import RowsByName, Snapshot, decode

keys = st.integers(0, 8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("change"), keys, st.integers(-3, 3)),
        st.tuples(st.just("replace"), keys, st.integers(-3, 3)),
        st.tuples(st.just("drop"), keys, st.none()),
        st.tuples(st.just("take"), st.integers(0, 3), st.none()),
        st.tuples(st.just("freeze"), st.none(), st.none()),
    ),
    max_size=60,
)


@given(steps)
def test_they_are_the_rows_of_the_moment(script: list[tuple[str, int, int]]) -> None:
    table: dict[int, list[int]] = {}
    frozen, wanted = DeferredRows(table, _sum, lambda key, taken: (key, taken)), list[tuple[int, int]]()
    for action, key, value in script:
        if action == "take":
            frozen.take(key)
        elif action == "freeze":
            assert [*frozen] == wanted
            frozen = DeferredRows(table, _sum, lambda key, taken: (key, taken))
            wanted = [(key, taken) for key, one in table.items() if (taken := _sum(one)) is not None]
        else:
            frozen.before_change(key)
            if action == "change":
                table.setdefault(key, []).append(value)
            elif action == "replace":
                table[key] = [value]
            else:
                table.pop(key, None)
    assert [*frozen] == wanted
    assert not frozen.is_open


def test_it_says_how_many_it_looked_at_and_closes_behind_the_last() -> None:
    frozen = DeferredRows({number: [number] for number in range(5)}, _sum, lambda key, taken: key)
    assert [frozen.take(2), frozen.is_open, frozen.take(3), frozen.is_open] == [2, True, 3, True]
    assert [frozen.take(1), frozen.is_open, frozen.take(1)] == [0, False, 0]
    assert [*frozen] == [1, 2, 3, 4]
    assert not NOTHING.is_open
    assert [*NOTHING] == []


def test_a_snapshot_names_what_is_to_be_taken_and_holds_all_of_it() -> None:
    rows = DeferredRows({"a": [1], "b": [2]}, _sum, lambda key, taken: [key, taken])
    named = RowsByName({f"n{number}": number for number in range(4_500)}, lambda number: {"is": number})
    snapshot = Snapshot(7, {"part": {"rows": rows, "named": named}, "flat": RowsByName({}, int)})
    assert snapshot.deferred() == [rows]
    rows.take_all()
    assert snapshot.deferred() == []
    found = decode(snapshot.encode(), 7)
    assert found is not None
    assert found.parts["part"]["rows"] == [["a", 1], ["b", 2]]
    assert found.parts["part"]["named"] == {f"n{number}": {"is": number} for number in range(4_500)}
    assert found.parts["flat"] == {}


def _sum(value: list[int]) -> int | None:
    """Return the sum of a value, or None if the sum is 0."""
    return sum(value) or None
