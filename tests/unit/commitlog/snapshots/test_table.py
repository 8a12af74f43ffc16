"""Tests that a table behaves like an ordered dictionary, and that captured states never change."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitlog.snapshots import table
from commitlog.snapshots.table import Table

late = st.lists(st.tuples(st.text(max_size=2), st.integers())).map(tuple)
rows = st.tuples(st.integers(), st.text(max_size=3), late)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 12), rows),
        st.tuples(st.just("pop"), st.integers(0, 12), st.none()),
        st.tuples(st.just("pop first"), st.none(), st.none()),
        st.tuples(st.just("freeze"), st.none(), st.none()),
    ),
    max_size=60,
)
ascending = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40)
"""The distance of each key from the previous key, and whether the key is removed again."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PART_ROWS_MAX", 3)
    monkeypatch.setattr(table, "GONE_MAX", 2)


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
@pytest.mark.usefixtures("small")
def test_it_is_a_dictionary_whose_frozen_states_never_change(steps: Iterable[tuple[str, Any, Any]]) -> None:
    mine: Table[int] = Table()
    expected: dict[int, Any] = {}
    frozen: list[tuple[Any, list[Any]]] = []
    for step, key, row in steps:
        match step:
            case "put":
                mine.put(key, row)
                expected[key] = row
            case "pop":
                assert mine.pop(key) == expected.pop(key, None)
            case "pop first" if expected:
                first = mine.first()
                assert first == next(iter(expected.items()))
                assert mine.pop(first[0]) == expected.pop(first[0])
            case "freeze":
                as_it_was = [(key, *row) for key, row in expected.items()]
                frozen.append((mine.freeze(lambda key, row: (key, *row)), as_it_was))
        assert [*mine.items()] == [*expected.items()]
        assert [*mine] == [*expected]
        assert len(mine) == len(expected)
        assert (mine.first() is None) == (not expected)
        for key in range(13):
            assert (key in mine) == (key in expected)
            assert mine.get(key) == expected.get(key)
        assert len(mine._parts) <= 1 + len(mine)
    for state, as_it_was in frozen:
        assert [*state] == as_it_was


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_keys=ascending, first=st.integers(0, 60), end=st.integers(0, 60))
@pytest.mark.usefixtures("small")
def test_keys_that_came_in_ascending_order_are_found_by_where_they_lie(
    given_keys: list[tuple[int, bool]], first: int, end: int
) -> None:
    mine: Table[int] = Table()
    key = 0
    for above, _ in given_keys:
        key += 1 + above
        mine.put(key, ())
    for place, key in enumerate([*mine]):
        if given_keys[place][1]:
            mine.pop(key)
    assert mine.between(first, end) == [key for key in mine if first <= key < end]


def test_the_collector_looks_into_none_of_it_also_when_parts_were_copied() -> None:
    mine: Table[int] = Table()
    for number in range(20_000):
        mine.put(number, (number, f"topic-{number}", ()))
    for number in range(0, 20_000, 100):
        mine.freeze(lambda key, row: row)
        mine.put(number, (0, "", ()))
        mine.pop(number + 1)
    assert not any(map(gc.is_tracked, mine._parts))


def test_few_rows_that_stay_of_many_lie_in_few_parts() -> None:
    mine: Table[str] = Table()
    for number in range(20 * table.PART_ROWS_MAX):
        mine.put(str(number), (number,))
    for number in range(20 * table.PART_ROWS_MAX):
        if number % table.PART_ROWS_MAX:
            mine.pop(str(number))
    assert [row for _, (row,) in mine.items()] == [number * table.PART_ROWS_MAX for number in range(20)]
    assert len(mine._parts) <= 2


def test_a_part_that_a_snapshot_has_is_copied_once_and_no_other_is() -> None:
    """Otherwise, each row that changes after a snapshot would require a copy of thousands of rows."""
    mine: Table[int] = Table()
    for number in range(2 * table.PART_ROWS_MAX):
        mine.put(number, (number,))
    mine.freeze(lambda key, row: row)
    first, second = mine._parts
    mine.put(0, (7,))
    copied = mine._parts[0]
    assert copied is not first
    for number in range(100):
        mine.put(number, (8,))
        mine.pop(100 + number)
    assert mine._parts[0] is copied
    assert mine._parts[1] is second
