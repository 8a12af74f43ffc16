"""The filters of timers are the same over HTTP, on the command line, in the console and in the documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from services.cli.timers.timer import app
from services.console.pages.calendar import FILTER
from services.ops.timers.timers import FilterQuery

NAMES = {one.alias or name for name, one in FilterQuery.model_fields.items()}


@pytest.mark.parametrize("verb", ["ls", "histogram", "cancel", "move", "fire"])
def test_each_command_on_many_has_each_filter(verb: str) -> None:
    group: Any = get_command(app)
    options = {flag for one in group.commands[verb].params for flag in one.opts}
    assert {f"--{name}" for name in NAMES} - options == set()


def test_the_calendar_and_the_documents_have_each_filter() -> None:
    assert {*FILTER} == NAMES
    document = (Path(__file__).parents[4] / "docs" / "timers.md").read_text()
    assert [name for name in NAMES if f"`--{name}" not in document] == []
