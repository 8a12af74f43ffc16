"""Every command that the documents show is one that there is, with arguments that it takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from services.cli.root import app

ROOT = Path(__file__).parents[4]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"(\.venv/bin/)?tidewheel ")


def commands() -> list[str]:
    """Return every line of the documents' code blocks that is a command of ours."""
    lines = [line for path in DOCUMENTS for line in code(path.read_text()) if SHOWN.match(line)]
    whole = {line.partition("  #")[0].strip() for line in lines}
    return sorted(line for line in whole if "  " not in line)  # what has gaps is a list of commands


def code(document: str) -> list[str]:
    """Return the lines of a document's code blocks."""
    return [line for block in document.split("\n```")[1::2] for line in block.splitlines()]


@pytest.mark.parametrize("line", commands())
def test_a_command_that_is_shown_is_understood(line: str) -> None:
    command: Any = get_command(app)
    context, arguments = None, shlex.split(line.partition(" > ")[0])[1:]
    while True:
        name = command.name or "tidewheel"
        context = command.make_context(name, arguments, parent=context)
        if not hasattr(command, "resolve_command"):
            return
        rest = [*getattr(context, "_protected_args", []), *context.args]
        if not rest:
            return
        _, command, arguments = command.resolve_command(context, rest)


def test_there_are_commands_to_understand() -> None:
    assert len(commands()) > 30


def test_the_page_of_commands_lists_each() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    command: Any = get_command(app)
    assert [name for name in command.list_commands(None) if f"`tidewheel {name}`" not in page] == []
