"""Tests the errors for invalid SQL filters, which contain the position and the expected text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commitlog import limits
from consumequeue.filters.errors import IllegalFilter
from consumequeue.filters.filter import parse_tags
from consumequeue.filters.sql_filter import parse_sql
from services.rpc.wire.statuses import name_of

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "sql_filters.json").read_text())
REFUSED = [(row[0], row[1]) for row in VECTORS["refused"]]


@pytest.mark.parametrize(("expression", "why"), REFUSED)
def test_a_wrong_expression_is_refused_with_its_place(expression: str, why: str) -> None:
    with pytest.raises(IllegalFilter) as refused:
        parse_sql(expression)
    assert why in str(refused.value)
    assert name_of(type(refused.value)) == "ILLEGAL_FILTER_EXPRESSION"


@pytest.mark.parametrize(
    "expression",
    [
        "NOT " * 200 + "a",
        "- " * 200 + "a = 1",
        "a" + " IS NULL" * 200,
        "NOT (" * 200 + "a" + ")" * 200,
        "(a = 1 OR b = 1 AND " * 100 + "a" + ")" * 100,
    ],
)
def test_what_is_nested_too_deep_is_refused(expression: str) -> None:
    with pytest.raises(IllegalFilter, match=f"nested more than {limits.FILTER_DEPTH_MAX} deep"):
        parse_sql(expression)


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(IllegalFilter, match=r"column 5: 11111111111111111111\.\.\. is out of range"):
        parse_sql("a > " + "1" * 2_000 + "." + "1" * 2_000)


def test_parentheses_alone_are_not_deep() -> None:
    assert parse_sql("(" * 1_000 + "a IS NULL" + ")" * 1_000).matches(b"")


@pytest.mark.parametrize("many", ["(" * 1_025 + "a" + ")" * 1_025, f"a IN ({','.join(['1'] * 1_025)})"])
def test_more_than_the_parser_is_to_read_is_refused(many: str) -> None:
    with pytest.raises(IllegalFilter, match=r"1025 opening parentheses and commas, the limit is 1024\."):
        parse_sql(many)


def test_many_alternatives_are_not_deep() -> None:
    assert parse_sql(" OR ".join(["a = 1"] * 60 + ["b IS NULL"])).matches(b"")


def test_what_would_take_long_for_each_message_is_refused() -> None:
    with pytest.raises(IllegalFilter, match=rf"more than {limits.FILTER_TERMS_MAX} .* IN \(\.\.\.\)"):
        parse_sql(" OR ".join(["a = 1"] * 200))
    assert parse_sql(f"a IS NULL OR a IN ({', '.join(['1'] * 1_000)})").matches(b"")


@pytest.mark.parametrize(
    ("parse", "characters_max"),
    [(parse_sql, limits.FILTER_CHARACTERS_MAX), (parse_tags, limits.TAG_BYTES_MAX)],
)
def test_a_long_expression_is_refused_unread(parse, characters_max) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IllegalFilter, match=f"the limit is {characters_max}"):
        parse("a" * (characters_max + 1))


@pytest.mark.parametrize("parse", [parse_sql, parse_tags])
def test_half_a_character_is_refused(parse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IllegalFilter, match="lone surrogate"):
        parse("TAGS = '\ud800'")
