"""Ten tasks of an operator, as `benchmarks/console.py --tasks` has them: clicks, commands, effects."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.audit_runs import write_run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CLICKS_MAX, COMMANDS_MAX = 4, 2


@pytest.fixture
def tasks() -> Iterator[Any]:
    """The module of the tasks; the modules of the benchmarks find each other by their bare names."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("parts.console.operator_tasks")
    sys.path.remove(str(BENCHMARKS))


def test_each_task_takes_few_clicks_and_commands(tasks: Any, tmp_path: Path) -> None:
    pytest.importorskip("rocketmq")
    write_run(tmp_path / "audits", "20261122T020000Z", totals={"orders": 40})
    folder = tmp_path / "world"
    folder.mkdir()
    found = tasks.measure(folder, tmp_path / "audits", None)
    assert len(found) == 1 + len(tasks.TASKS)
    clicks = {name: took["console"]["clicks"] for name, took in found.items()}
    assert {name: count for name, count in clicks.items() if count > CLICKS_MAX} == {}
    commands = {one.name: len(one.commands) for one in tasks.TASKS}
    assert {name: count for name, count in commands.items() if count > COMMANDS_MAX} == {}


def test_the_page_lists_the_commands_of_the_tasks(tasks: Any) -> None:
    table = (BENCHMARKS.parent / "docs/console.md").read_text().partition("## Ten tasks")[2]
    begin = [
        " ".join(line.line.partition("{")[0].split()[:3]) for one in tasks.TASKS for line in one.commands
    ]
    assert [one for one in begin if one not in table] == []
    assert table.count("\n| ") == 1 + len(tasks.TASKS)
