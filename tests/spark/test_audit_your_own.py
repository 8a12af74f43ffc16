"""docs/audit-your-own.md, block by block as printed: the service, the proposal, the audits, the fault; in
SQLite as it says, and the same in PostgreSQL.

Printed output is the commands' own, apart from times, ids of runs and places in the log.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import make_url

from tests import kept_java
from tests.postgresql import running_postgresql
from tidewheel.testing.process import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "audit-your-own.md"
SECONDS = 1_800
PAGES_DATABASE = "sqlite:///theatre.db"
CODES = [0, 1, 0, 0]
"""How the page's commands end: the books balance, a fault is found, it is shown, they balance again."""

ANY = (
    (r"\d{8}T\d{6}Z(-\d+)?", "RUN"),
    (r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(\.\d+)?", "TIME"),
    (r"\d+ records", "N records"),
    (r"offset \d+", "offset N"),
    (r" +", " "),
)


class Block(NamedTuple):
    """One code block of the page."""

    label: str
    text: str


@dataclass
class Reader:
    """Somebody who does what the page says, in an empty folder with a broker."""

    folder: Path
    http: str
    database: str
    """The URL of the database in place of the page's."""

    def here(self, text: str) -> str:
        """Return a text with the addresses of this reader's broker and database."""
        return text.replace("127.0.0.1:8088", self.http).replace(PAGES_DATABASE, self.database)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a process to its end."""
        environment = {**os.environ, "HOME": str(self.folder), "NO_COLOR": "1"}
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def python(self, text: str) -> None:
        """Run a program."""
        program = self.folder / "boxoffice.py"
        program.write_text(self.here(text))
        ran = self.run(sys.executable, str(program))
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def bash(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        program, *arguments = shlex.split(self.here(line))
        assert program == "tidewheel"
        return self.run(sys.executable, "-m", "services.cli.main", *arguments)


def blocks() -> list[Block]:
    """Return the blocks that are run or compared, in their order."""
    found = re.findall(r"^```(python|bash|toml|text)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(label, text) for label, text in found]


def alike(text: str) -> list[str]:
    """Return the lines of an output without what is of its own run."""
    for pattern, word in ANY:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.strip().splitlines()]


@pytest.fixture(params=["sqlite", "postgresql"])
def reader(readers_folder: Path, request: pytest.FixtureRequest) -> Iterator[Reader]:
    is_file = request.param == "sqlite"
    with nullcontext(PAGES_DATABASE) if is_file else running_postgresql() as url:
        broker = BrokerProcess(readers_folder)
        broker.start()
        yield Reader(readers_folder, broker.http, make_url(url).render_as_string())
        broker.stop()


def test_the_page_is_true_from_the_service_to_the_fault(reader: Reader) -> None:
    printed, codes = "", list[int]()
    for block in blocks():
        if block.label == "python":
            reader.python(block.text)
        elif block.label == "bash":
            ran = reader.bash(block.text)
            assert "Traceback" not in ran.stderr, ran.stderr
            printed = ran.stdout.replace(reader.database, PAGES_DATABASE)
            codes.append(ran.returncode)
        elif block.label == "text":
            assert alike(block.text) == alike(printed)
        else:
            written = (reader.folder / "audit.toml").read_text().splitlines()
            shown = block.text.splitlines()
            assert [line for line in shown if not any(one.startswith(line) for one in written)] == []
    assert codes == CODES
    assert alike(printed)[-1].startswith("The books balance.")
    assert kept_java.is_there() == sys.platform.startswith("linux"), "it was not the audits' own to end"
