"""What the documentation shows of SQL filters can be written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from consumequeue.sql_filter import parse_sql

PAGE = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()
EXAMPLES = [
    line for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
] + re.findall(r'FilterExpression\("([^"]+)", 2\)', PAGE)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_can_be_written(example: str) -> None:
    assert parse_sql(example).matches(b"") is False
