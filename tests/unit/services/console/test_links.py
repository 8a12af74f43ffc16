"""The pages of the commands that rows of the overview name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.console.links import page_of
from services.status import judgement

WITHOUT_PAGE = ("tidewheel version", "tidewheel status", "tidewheel store info", "tidewheel doctor")


@pytest.mark.parametrize(
    ("command", "page"),
    [
        ("tidewheel group lag a b", "/groups/one?name=a%20b"),
        ("tidewheel group ls", "/groups"),
        ("tidewheel dlq ls shop%x", "/dead-letters/group?group=shop%25x"),
        ("tidewheel topic show sale", "/topics/change?name=sale#release"),
        ("tidewheel txn ls --state expired", "/transactions?state=EXPIRED"),
        ("tidewheel audit show --out audit-out", "/audits/run"),
        ("tidewheel audit ls", "/audits"),
        ("tidewheel cluster nodes --http 127.0.0.1:8088", "/cluster"),
        ("tidewheel store info", ""),
        ("", ""),
    ],
)
def test_a_command_has_the_page_with_the_same_content(command: str, page: str) -> None:
    assert page_of(command) == page


def test_every_command_of_a_row_has_a_page_or_none_on_purpose() -> None:
    named = re.findall(r'f?"(tidewheel [^"]+)"', Path(judgement.__file__).read_text())
    plain = [re.sub(r"\{[^}]*\}", "x", one) for one in named]
    assert len(plain) > 15
    assert [one for one in plain if not page_of(one) and not one.startswith(WITHOUT_PAGE)] == []
