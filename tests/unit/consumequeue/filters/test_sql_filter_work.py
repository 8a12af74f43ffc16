"""Tests that the maximum cost of a filter per message is known and limited when the expression is parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog import limits
from commitlog.records import properties
from consumequeue.filters import terms as filter_terms
from consumequeue.filters.errors import IllegalFilter
from consumequeue.filters.filter import EVERYTHING, parse_tags
from consumequeue.filters.sql_filter import parse_sql

TEXTS = st.text("ab", min_size=1, max_size=24)


def test_texts_that_repeat_their_beginning_count_several_times() -> None:
    costly = " OR ".join(f"p CONTAINS '{'a' * 18}b'" for _ in range(100))
    with pytest.raises(
        IllegalFilter, match=r"Line 1, column 1: its CONTAINS may pass over a property 300 times"
    ):
        parse_sql(costly)
    parse_sql(" OR ".join(f"p CONTAINS 'word{number}'" for number in range(limits.FILTER_TERMS_MAX)))


def test_one_long_text_may_repeat_its_beginning() -> None:
    assert parse_sql(f"p CONTAINS '{'a' * 500}'").matches(properties.encode({"p": "a" * 500}))
    with pytest.raises(IllegalFilter, match="may pass over a property"):
        parse_sql(f"p CONTAINS '{'a' * 2_000}'")


@given(TEXTS, st.text("ab", max_size=200))
def test_no_text_makes_a_search_compare_more_than_is_counted(sought: str, text: str) -> None:
    compared = 0
    for at in range(len(text) - len(sought) + 1):
        pairs = zip(sought, text[at:], strict=False)
        compared += next((n for n, (one, other) in enumerate(pairs) if one != other), len(sought))
    assert compared <= len(text) * filter_terms._overlaps(sought)


def test_work_grows_with_terms_passes_and_bytes() -> None:
    one, many = parse_sql("p CONTAINS 'x'"), parse_sql(" OR ".join(["p CONTAINS 'x'"] * 100))
    assert one.work(100) == 0
    assert many.work(12_000) > 20 * one.work(12_000) > 0
    assert EVERYTHING.work(32_000) == 0
    assert parse_tags("a").work(32_000) <= 4


def test_the_costliest_filter_over_the_longest_properties_costs_less_than_two_slices() -> None:
    expression = " OR ".join(["p CONTAINS 'x'"] * limits.FILTER_PASSES_MAX)
    sent = limits.PROPERTIES_USER_BYTES_MAX
    assert parse_sql(expression).work(sent) <= 2 * limits.SCANNED_PER_RECEIVE_MAX


def test_a_long_property_is_not_kept_as_a_number() -> None:
    wanted = parse_sql("p > 5")
    filter_terms._short_number.cache_clear()
    assert not wanted.matches(properties.encode({"p": "7" * 16_000}))
    assert filter_terms._short_number.cache_info().currsize == 0


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("TrUe", True), ("trues", False), ("no", False)]
)
def test_a_truth_value_is_read_in_any_case(text: str, expected: bool) -> None:
    assert parse_sql("p = TRUE").matches(properties.encode({"p": text})) is expected
