"""SQL filters: what each form of expression says of a message, as true, false or unknown (None)."""

from __future__ import annotations

import pytest

from commitlog import properties
from consumequeue.entry import tags_code
from consumequeue.sql_filter import SqlFilter, parse_sql

STORED = properties.encode({
    "UNIQ_KEY": "01AB",
    "TAGS": "paid",
    "KEYS": "order-7 cart-9",
    "price": "5",
    "weight": "3.50",
    "big": "9223372036854775807",
    "small": "-12",
    "tiny": "1e-3",
    "region": "eu",
    "note": "it's here",
    "order": "first",
    "is_new": "true",
    "IsOld": "False",
    "_from$1": "web",
    "empty_looking": " ",
    "low": "1",
    "high": "10",
    "same": "5",
    "long": "x" * 5_000,
    "digits": "7" * 5_000,
})  # fmt: skip

EQUALITY = {
    "region = 'eu'": True,
    "region = 'EU'": False,
    "region = 'us'": False,
    "region <> 'us'": True,
    "region <> 'eu'": False,
    "'eu' = region": True,
    "note = 'it''s here'": True,
    "note = 'its here'": False,
    "empty_looking = ' '": True,
    "price = 5": True,
    "price = 5.0": True,
    "price = 5l": True,
    "price = 5L": True,
    "price = 6": False,
    "price <> 6": True,
    "5 = price": True,
    "price = '5'": True,
    "price = '5.0'": False,
    "weight = 3.5": True,
    "weight = 3.50": True,
    "weight = '3.5'": False,
    "weight = 35E-1": True,
    "weight = .35e1": True,
    "tiny = 0.001": True,
    "tiny = 1E-3": True,
    "big = 9223372036854775807": True,
    "big = 9223372036854775808": False,
    "small = -12": True,
    "small = - 12": True,
    "small = +12": False,
    "-small = 12": True,
    "+small = -12": True,
    "-price = -5": True,
    "price = same": True,
    "price = low": False,
    "price <> low": True,
    "5 = 5": True,
    "'a' = 'b'": False,
    "'5' = 5": True,
}
TRUTHS = {
    "TRUE": True,
    "false": False,
    "NOT TRUE": False,
    "NOT FALSE": True,
    "NOT NOT TRUE": True,
    "is_new": True,
    "NOT is_new": False,
    "IsOld": False,
    "NOT IsOld": True,
    "region": False,
    "is_new = TRUE": True,
    "is_new = true": True,
    "is_new = FALSE": False,
    "is_new <> FALSE": True,
    "IsOld = FALSE": True,
    "region = FALSE": True,
    "TRUE = is_new": True,
    "is_new = 'true'": True,
    "IsOld = 'false'": False,
    "(price > 3) = TRUE": True,
    "price > 3 = TRUE": True,
    "(price > 3) = (region = 'eu')": True,
    "(price > 3) <> is_new": False,
}
ORDERS = {
    "price > 4": True,
    "price > 5": False,
    "price >= 5": True,
    "price < 5.01": True,
    "price < 5": False,
    "price <= 5": True,
    "4 < price": True,
    "weight > 3": True,
    "weight < 3.6": True,
    "big > 2147483647": True,
    "big >= 9223372036854775807": True,
    "small < 0": True,
    "small < -11.5": True,
    "-small > 11": True,
    "price > low": True,
    "low > high": False,
    "high > price": True,
    "price > -5": True,
    "price>4": True,
    "2 < 3": True,
    "tiny > 0.0": True,
}
BETWEENS = {
    "price BETWEEN 1 AND 10": True,
    "price BETWEEN 5 AND 5": True,
    "price BETWEEN 6 AND 10": False,
    "price NOT BETWEEN 6 AND 10": True,
    "price NOT BETWEEN 1 AND 10": False,
    "weight BETWEEN 3.4 AND 3.6": True,
    "small BETWEEN -20 AND -10": True,
    "price BETWEEN low AND high": True,
    "price BETWEEN high AND low": False,
    "price BETWEEN 1 AND 10 AND region = 'eu'": True,
    "price BETWEEN 1 AND 10 OR region = 'us'": True,
    "price BETWEEN 6 AND missing": False,
    "price NOT BETWEEN 6 AND missing": True,
    "price BETWEEN 1 AND missing": None,
}
MEMBERS = {
    "region IN ('eu')": True,
    "region IN ('us', 'eu')": True,
    "region IN ('us', 'cn')": False,
    "region NOT IN ('us', 'cn')": True,
    "region NOT IN ('us', 'eu')": False,
    "region IN ('us', 'us', 'eu', 'a', 'b', 'c', 'd')": True,
    "price IN ('5')": True,
    "price IN ('5.0')": False,
    "price IN (4, 5, 6)": True,
    "price IN (4, 5.0)": True,
    "price IN (4, 6)": False,
    "price NOT IN (4, 6)": True,
    "small IN (-12, 12)": True,
    "region IN (1, 'eu')": True,
    "region IN (1, 'us')": None,
    "price IN (1, 'us')": False,
    "order in ('first')": True,
}
PARTS = {
    "note CONTAINS 's h'": True,
    "note CONTAINS 'z'": False,
    "note NOT CONTAINS 'z'": True,
    "note NOT CONTAINS 's h'": False,
    "note CONTAINS 't''s'": True,
    "region STARTSWITH 'e'": True,
    "region STARTSWITH 'u'": False,
    "region NOT STARTSWITH 'u'": True,
    "region ENDSWITH 'u'": True,
    "region NOT ENDSWITH 'u'": False,
    "region ENDSWITH 'e'": False,
    "KEYS CONTAINS 'cart-9'": True,
    "'axb' CONTAINS 'x'": True,
    "'axb' NOT STARTSWITH 'ax'": False,
    "region CONTAINS '.'": False,
    "note CONTAINS ''": None,
    "note NOT CONTAINS ''": None,
    "region startswith ''": None,
    "price CONTAINS '5'": True,
}
NULLS = {
    "missing IS NULL": True,
    "missing IS NOT NULL": False,
    "region IS NULL": False,
    "region IS NOT NULL": True,
    "NOT missing IS NULL": False,
    "NOT (region IS NULL)": True,
    "(missing > 1) IS NULL": True,
    "(price > 1) IS NULL": False,
    "'a' IS NULL": False,
    "missing": None,
    "NOT missing": None,
    "missing = 'a'": None,
    "missing <> 'a'": None,
    "'a' = missing": None,
    "'a' <> missing": None,
    "missing = 1": None,
    "missing <> 1": None,
    "NOT missing = 1": None,
    "missing = other_missing": None,
    "missing <> other_missing": None,
    "price = missing": None,
    "price <> missing": None,
    "missing = TRUE": None,
    "missing > 1": None,
    "price > missing": None,
    "missing BETWEEN 1 AND 2": None,
    "missing NOT BETWEEN 1 AND 2": None,
    "missing IN ('a')": None,
    "missing NOT IN ('a')": None,
    "missing IN (1)": None,
    "missing CONTAINS 'a'": None,
    "missing NOT CONTAINS 'a'": None,
    "NOT (missing STARTSWITH 'a')": None,
    "-missing = 1": None,
    "region = 1": None,
    "region <> 1": None,
    "region > 1": None,
    "NOT region > 1": None,
    "region BETWEEN 1 AND 2": None,
    "-region = 1": None,
    "empty_looking > 0": None,
    "long > 0": None,
    "digits > 0": None,
    "Price = 5": None,
}
LOGIC = {
    "TRUE AND TRUE": True,
    "TRUE AND FALSE": False,
    "TRUE AND missing": None,
    "missing AND TRUE": None,
    "FALSE AND missing": False,
    "missing AND FALSE": False,
    "missing AND missing": None,
    "TRUE OR missing": True,
    "missing OR TRUE": True,
    "FALSE OR missing": None,
    "missing OR FALSE": None,
    "FALSE OR FALSE": False,
    "missing OR missing": None,
    "TRUE OR FALSE AND FALSE": True,
    "(TRUE OR FALSE) AND FALSE": False,
    "FALSE AND FALSE OR TRUE": True,
    "NOT FALSE AND FALSE": False,
    "NOT (FALSE AND FALSE)": True,
    "NOT price = 5": False,
    "NOT price = 6": True,
    "NOT price = 6 AND region = 'us'": False,
    "NOT (price = 6 AND region = 'us')": True,
    "region > 3 OR price = 5": True,
    "region > 3 AND price = 6": False,
    "missing IS NULL OR missing = 'hello'": True,
    "missing IS NOT NULL AND missing = 'hello'": False,
    "price = 3 and low <> 4 Or high > 5 AnD same <= 5": True,
    "((((price)) = ((5))))": True,
}
SPELLING = {
    "order = 'first'": True,
    "order='first'or price=6": True,
    "_from$1 = 'web'": True,
    "nothing IS NULL and inside IS NULL and nullable IS NULL and android IS NULL and truest IS NULL": True,
    "price\n=\t5\r\nAND region = 'eu'": True,
    "price = 5 -- the rest is a comment": True,
    "price = -- a comment of one line\n 5": True,
    "/* first */ price /* second * ** / */ = 5 /***/": True,
    "note = '--' OR price = 5": True,
    "note = '/*' OR region = '*/'": False,
    "price iN ('5') aNd region sTARTSWITH 'e'": True,
    "UNIQ_KEY = '01AB'": True,
    "TAGS = 'paid'": True,
    "TAGS IS NOT NULL AND TAGS <> 'open'": True,
    "tags = 'paid'": None,
    "now IS NULL": True,
}
TRUTH_OF = (
    EQUALITY | TRUTHS | ORDERS | BETWEENS | MEMBERS | PARTS | NULLS | LOGIC | SPELLING
)  # fmt: skip


@pytest.mark.parametrize(("expression", "expected"), TRUTH_OF.items())
def test_an_expression_is_true_false_or_unknown(expression: str, expected: bool | None) -> None:
    wanted = parse_sql(expression)
    assert isinstance(wanted, SqlFilter)
    assert wanted.holds(STORED) is expected
    assert wanted.matches(STORED) is (expected is True)


@pytest.mark.parametrize(("expression", "expected"), TRUTH_OF.items())
def test_its_negation_is_the_opposite_and_unknown_stays_unknown(
    expression: str, expected: bool | None
) -> None:
    negated = parse_sql(f"NOT ({expression}\n)")
    assert isinstance(negated, SqlFilter)
    assert negated.holds(STORED) is (None if expected is None else not expected)


def test_there_are_enough_expressions() -> None:
    assert len(TRUTH_OF) >= 120


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
