"""Tests random SQL filters. Each filter is either rejected or agrees with an oracle."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog import limits
from commitlog.records import properties
from consumequeue.filters.errors import IllegalFilter
from consumequeue.filters.filter import Filter, parse_tags
from consumequeue.filters.sql_filter import SqlFilter, parse_sql

WORDS = [
    *["a", "b", "TAGS", "$x", "_", "'v'", "''", "'it''s'", "'", "1", "0", "-1", "2.5", ".5", "1e9", "9" * 30],
    *[
        "AND",
        "OR",
        "NOT",
        "IS",
        "NULL",
        "IN",
        "BETWEEN",
        "TRUE",
        "FALSE",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
    ],
    *[
        "(",
        ")",
        ",",
        "=",
        "<>",
        "<",
        ">",
        "<=",
        ">=",
        "+",
        "-",
        "--",
        "/*",
        "*/",
        "\n",
        ";",
        "!",
        '"',
        "\x00",
    ],
]
VALUES = st.sampled_from(["", "v", "it's", "1", "-1", "2.50", "true", "FALSE", "x" * 200, "1e9999", "NaN"])
STORED = st.fixed_dictionaries(dict.fromkeys(("a", "b", "TAGS", "$x"), VALUES)).map(properties.encode)

Expected = tuple[str, bool | None]


def read(expression: str) -> Filter | None:
    try:
        return parse_sql(expression)
    except IllegalFilter:
        return None


@settings(max_examples=400)
@given(st.lists(st.sampled_from(WORDS), max_size=40), STORED, st.booleans())
def test_words_in_any_order_are_read_or_refused(words: list[str], stored: bytes, is_spaced: bool) -> None:
    wanted = read((" " if is_spaced else "").join(words))
    assert wanted is None or wanted.matches(stored) in (True, False)


@settings(max_examples=400)
@given(st.text(max_size=200), STORED)
def test_any_text_is_read_or_refused(expression: str, stored: bytes) -> None:
    wanted = read(expression)
    assert wanted is None or wanted.matches(stored) in (True, False)


@given(st.text(max_size=200), STORED)
def test_any_text_is_a_tag_expression_or_refused(expression: str, stored: bytes) -> None:
    with suppress(IllegalFilter):
        assert parse_tags(expression).matches(stored) in (True, False)


@settings(max_examples=200)
@given(st.binary(max_size=300), st.sampled_from(["a = 'v' OR b > 1", "TAGS IN ('v', 1)", "a CONTAINS 'v'"]))
def test_any_bytes_for_properties_are_judged(stored: bytes, expression: str) -> None:
    assert parse_sql(expression).matches(stored) in (True, False)


@pytest.mark.parametrize("word", [*WORDS, "a,", "a=", "a=1 OR ", "NOT (", "a IN (1,", "((a)", "a IS NULL = "])
def test_one_thing_repeated_up_to_the_limit_ends(word: str) -> None:
    read(word * (limits.FILTER_CHARACTERS_MAX // len(word)))
    read(f"{word} " * (limits.FILTER_CHARACTERS_MAX // (len(word) + 1)))


TEXTS = {"r": "eu", "t": "true", "n": "2.50", "m": None}
STORED_TEXTS = properties.encode({name: text for name, text in TEXTS.items() if text})
NUMBERS = {"n": Decimal("2.5"), "3": Decimal(3), "-1.5": Decimal("-1.5"), "r": None, "m": None}


def both(left: bool | None, right: bool | None) -> bool | None:
    return False if left is False or right is False else None if None in (left, right) else True


def flipped(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def number_test(left: str, order: str, right: str) -> Expected:
    x, y = NUMBERS[left], NUMBERS[right]
    truth = None if x is None or y is None else {"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[order]
    return f"{left} {order} {right}", truth


def text_test(name: str, text: str, has_not: bool) -> Expected:
    found = TEXTS[name]
    truth = None if found is None else found == text
    return (f"{name} <> '{text}'", flipped(truth)) if has_not else (f"{name} = '{text}'", truth)


LEAVES = st.one_of(
    st.builds(
        number_test,
        st.sampled_from(sorted(NUMBERS)),
        st.sampled_from(["<", "<=", ">", ">="]),
        st.sampled_from(sorted(NUMBERS)),
    ),
    st.builds(
        text_test, st.sampled_from(sorted(TEXTS)), st.sampled_from(["eu", "true", "us"]), st.booleans()
    ),
    st.sampled_from([("TRUE", True), ("false", False), ("t", True), ("m", None), ("m IS NULL", True)]),
)


def grown(inner: st.SearchStrategy[Expected]) -> st.SearchStrategy[Expected]:
    return st.one_of(
        st.builds(lambda one: (f"NOT ({one[0]})", flipped(one[1])), inner),
        st.builds(lambda one: (f"({one[0]}) IS NULL", one[1] is None), inner),
        st.builds(lambda x, y: (f"({x[0]}) AND ({y[0]})", both(x[1], y[1])), inner, inner),
        st.builds(
            lambda x, y: (f"({x[0]}) or({y[0]})", flipped(both(flipped(x[1]), flipped(y[1])))), inner, inner
        ),
    )


@settings(max_examples=400)
@given(st.recursive(LEAVES, grown, max_leaves=12))
def test_it_says_what_the_rules_of_three_valued_logic_say(expected: Expected) -> None:
    expression, truth = expected
    wanted = parse_sql(expression)
    assert isinstance(wanted, SqlFilter)
    assert wanted.holds(properties.decode(STORED_TEXTS)) is truth
