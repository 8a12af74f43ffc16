"""Tests the result of each form of SQL filter expression for a message: true, false, or unknown (None)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commitlog.records import properties
from consumequeue.entry import tags_code
from consumequeue.filters.sql_filter import SqlFilter, parse_sql

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "sql_filters.json").read_text())
STORED = properties.encode(VECTORS["properties"])
TRUTHS = [(row[0], row[1]) for rows in VECTORS["truths"].values() for row in rows]


@pytest.mark.parametrize(("expression", "expected"), TRUTHS)
def test_an_expression_is_true_false_or_unknown(expression: str, expected: bool | None) -> None:
    wanted = parse_sql(expression)
    assert isinstance(wanted, SqlFilter)
    assert wanted.holds(VECTORS["properties"]) is expected
    assert wanted.matches(STORED) is (expected is True)


@pytest.mark.parametrize(("expression", "expected"), TRUTHS)
def test_its_negation_is_the_opposite_and_unknown_stays_unknown(
    expression: str, expected: bool | None
) -> None:
    negated = parse_sql(f"NOT ({expression}\n)")
    assert isinstance(negated, SqlFilter)
    assert negated.holds(VECTORS["properties"]) is (None if expected is None else not expected)


def test_there_are_enough_expressions() -> None:
    assert len(TRUTHS) >= 120


def test_texts_beyond_ascii_are_texts() -> None:
    stored = properties.encode({"city": "Zürich", "kind": "\u8ba2\u5355"})
    assert parse_sql("city = 'Zürich' AND kind ENDSWITH '\u5355'").matches(stored)


def test_a_message_without_properties_matches_what_asks_for_none() -> None:
    assert parse_sql("a IS NULL").matches(b"")
    assert not parse_sql("a = 1 OR a <> 1").matches(b"")


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TAGS = 'paid'", {"paid"}),
        ("'paid' = TAGS", {"paid"}),
        ("TAGS IN ('paid', 'sent')", {"paid", "sent"}),
        ("TAGS = 'paid' OR TAGS = 'sent'", {"paid", "sent"}),
        ("TAGS = 'paid' AND price > 3", {"paid"}),
        ("price > 3 AND (TAGS = 'paid' OR TAGS IN ('sent'))", {"paid", "sent"}),
        ("TAGS IN ('paid', 'sent') AND TAGS IN ('sent', 'open')", {"sent"}),
        ("TAGS = 'paid' AND TAGS = 'sent'", set()),
        ("TAGS = 'paid' OR price > 3", None),
        ("TAGS <> 'paid'", None),
        ("NOT TAGS = 'paid'", None),
        ("NOT (TAGS <> 'paid')", None),
        ("TAGS NOT IN ('paid')", None),
        ("TAGS IN ('paid', 5)", None),
        ("TAGS = 5", None),
        ("TAGS = KEYS", None),
        ("TAGS STARTSWITH 'paid'", None),
        ("TAGS IS NULL", None),
        ("(TAGS = 'paid') = FALSE", None),
        ("(TAGS = 'paid') IS NULL", None),
        ("region = 'paid'", None),
    ],
)
def test_it_says_which_tags_may_match(expression: str, tags: set[str] | None) -> None:
    expected = None if tags is None else frozenset(map(tags_code, tags))
    assert parse_sql(expression).tags_codes == expected


def test_a_parsed_filter_is_kept() -> None:
    assert parse_sql("kept = 1") is parse_sql("kept = 1")
