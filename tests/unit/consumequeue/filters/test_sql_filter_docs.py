"""Tests that the SQL filters shown in the documentation are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commitlog import limits
from commitlog.records import properties
from consumequeue.filters.errors import IllegalFilter
from consumequeue.filters.sql_filter import parse_sql

PAGE = (Path(__file__).parents[4] / "docs" / "filters.md").read_text()
EXAMPLES = [
    line for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
] + re.findall(r'FilterExpression\("([^"]+)", 2\)', PAGE)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_can_be_written(example: str) -> None:
    assert parse_sql(example).matches(b"") is False


def test_a_text_that_repeats_its_beginning_counts_as_the_page_says() -> None:
    found = re.search(r"`('a+b')` counts (\d)", PAGE)
    assert found is not None
    text, passes = found[1], int(found[2])
    count = limits.FILTER_PASSES_MAX // passes
    parse_sql(" OR ".join([f"p CONTAINS {text}"] * count))
    with pytest.raises(IllegalFilter, match=f"a property {(count + 1) * passes} times"):
        parse_sql(" OR ".join([f"p CONTAINS {text}"] * (count + 1)))


def test_the_values_of_a_list_do_not_count() -> None:
    values = ", ".join(map(str, range(limits.FILTER_TERMS_MAX * 4)))
    assert parse_sql(f"p IN ({values})").matches(properties.encode({"p": "7"}))
