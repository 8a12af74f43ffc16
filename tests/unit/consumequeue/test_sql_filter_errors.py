"""SQL filters that are refused: where, and what was expected there."""

from __future__ import annotations

import pytest

from commitlog import limits
from commitlog.errors import IllegalFilter
from consumequeue.filter import parse_tags
from consumequeue.sql_filter import parse_sql

REFUSED = {
    "": "Line 1, column 1: it ends where",
    "   ": "Line 1, column 4: it ends where",
    "*": "Line 1, column 1: '*' stands where",
    "a = ": "Line 1, column 5: it ends where",
    "a": None,
    "5": "column 1: a number is neither true nor false",
    "'a'": "column 1: a text is neither true nor false",
    "a = 1 AND 'b'": "column 11: a text is neither true nor false",
    "NOT 5": "column 5: a number is neither true nor false",
    "a = NULL": "column 5: NULL equals nothing. Write IS NULL or IS NOT NULL.",
    "NULL": "column 1: NULL equals nothing",
    "a IN (NULL)": "column 7: NULL stands where",
    "a = 1 OR\n  b ! 2": "Line 2, column 5: '!' stands where",
    "a != 1": "column 3: '!' stands where",
    "a == 1": "column 4: = stands where '(', a 'text', a number, a property or TRUE was expected.",
    'a = "b"': "column 5: '\"' stands where",
    "a LIKE 'b'": "column 3: LIKE stands where",
    "a = 'b": "column 5: the text that begins here is not closed by a quote.",
    "a = 'it's'": "column 9: s stands where",
    "a = 1 /* never closed": "column 7: '/' stands where",
    "(a = 1": "column 7: it ends where ')' was expected.",
    "a = 1)": "column 6: ) stands where the end was expected.",
    "a = 1 b": "column 7: b stands where",
    "a AND BETWEEN 2 AND 10": "column 7: BETWEEN stands where",
    "a BETWEEN 10 AND 0": "column 11: BETWEEN 10 AND 0 has the greater number first.",
    "a BETWEEN 2": "it ends where AND was expected.",
    "a BETWEEN 'b' AND 'c'": "column 11: >= compares numbers and properties, not a text.",
    "a > 'b'": "column 5: > compares numbers and properties, not a text.",
    "a < TRUE": "column 5: < compares numbers and properties, not a truth value.",
    "a > 1 > 2": "column 1: > compares numbers and properties, not a truth value.",
    "TRUE = 5": "column 1: a truth value and a number cannot be compared.",
    "(a = 1) = 'b'": "column 2: a truth value and a text cannot be compared.",
    "a IN ()": "column 7: ) stands where a 'text' or a number was expected.",
    "a IN ('b',)": "column 11: ) stands where",
    "a IN 'b'": "column 6: 'b' stands where '(' was expected.",
    "a IN (b)": "column 7: b stands where",
    "'a' IN ('a')": "column 1: IN asks for a property before it, not a text.",
    "5 NOT IN (5)": "column 1: IN asks for a property before it, not a number.",
    "a CONTAINS b": "column 12: b stands where a 'text' was expected.",
    "a CONTAINS 5": "column 12: 5 stands where a 'text' was expected.",
    "5 CONTAINS 'a'": "column 1: CONTAINS asks for a property or a text before it, not a number.",
    "a NOT = 1": "column 7: = stands where BETWEEN, CONTAINS or IN was expected.",
    "a IS 1": "column 6: 1 stands where NOT or NULL was expected.",
    "a IS NOT 1": "column 10: 1 stands where NULL was expected.",
    "-'a' = 1": "column 2: A sign stands before a number or a property, not a text.",
    "-TRUE": "column 2: A sign stands before a number or a property, not a truth value.",
    "a = 007": "column 6: 0 stands where",
    "a = 0x1F": "column 6: x1F stands where",
    "a = 1.2.3": "column 8: .3 stands where",
    "a-b = 1": "column 2: - stands where",
    "a + 1 = 2": "column 3: + stands where",
    "a.b = 1": "column 2: '.' stands where",
    "a = 9223372036854775809": "column 5: 9223372036854775809 is out of range.",
    "a = 100000000000000000000000": "column 5: 10000000000000000000... is out of range.",
    "a = 1e400": "column 5: 1e400 is out of range.",
    "a = 1e99999999": "column 5: 1e99999999 is out of range.",
    "a > " + "1" * 2_000 + "." + "1" * 2_000: "column 5: 11111111111111111111... is out of range.",
    "or = 1": "column 1: or stands where",
    "a = 1; DROP TABLE b": "column 6: ';' stands where",
    "a = 1 \x00": "column 7: '\\x00' stands where",
    "\ufeffa = 1": "column 1: '\\ufeff' stands where",
    "a(1) = 1": "column 2: ( stands where",
    "a = 1, b = 2": "column 6: , stands where",
}


@pytest.mark.parametrize(("expression", "why"), [(one, why) for one, why in REFUSED.items() if why])
def test_a_wrong_expression_is_refused_with_its_place(expression: str, why: str) -> None:
    with pytest.raises(IllegalFilter) as refused:
        parse_sql(expression)
    assert why in str(refused.value)
    assert refused.value.status == "ILLEGAL_FILTER_EXPRESSION"


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


def test_parentheses_alone_are_not_deep() -> None:
    assert parse_sql("(" * 1_000 + "a IS NULL" + ")" * 1_000).matches(b"")


def test_many_alternatives_are_not_deep() -> None:
    assert parse_sql(" OR ".join(["a = 1"] * 400 + ["b IS NULL"])).matches(b"")


@pytest.mark.parametrize("parse", [parse_sql, parse_tags])
def test_a_long_expression_is_refused_unread(parse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IllegalFilter, match=f"the limit is {limits.FILTER_CHARACTERS_MAX}"):
        parse("a" * (limits.FILTER_CHARACTERS_MAX + 1))


@pytest.mark.parametrize("parse", [parse_sql, parse_tags])
def test_half_a_character_is_refused(parse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IllegalFilter, match="lone surrogate"):
        parse("TAGS = '\ud800'")
