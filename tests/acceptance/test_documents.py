"""What README, CONTRIBUTING and docs/ show runs as printed, on a broker of the page's own.

The label of a code block says how: `python` is a program (or a test, if it holds one), `bash` commands in
order, `sh` and `php` a script, `toml`, `json` and `sql` are read by who reads them; `text` is for people.
What follows `fragment` cannot run by itself: it needs another machine, a terminal for an hour, or is part of
something.
`bash cluster` runs on machines of a cluster (`test_cluster_page`). Addresses are those of the page's broker,
and a name that only a reader's store would have may be told to be unknown.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from consumequeue.filters.sql_filter import parse_sql
from services.cli.main import main
from tests.audit_runs import write_run
from tidewheel.barrier import barrier_sql
from tidewheel.command import COMMAND
from tidewheel.testing.process import BrokerProcess

ROOT = Path(__file__).parents[2]
DOCS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *DOCS)
RUN_BY_A_MACHINE = ("python", "bash", "sh", "php", "toml", "json", "sql")
ON_A_CLUSTER = "bash cluster"
"""Commands on machines of a cluster, which `test_cluster_page` plays."""
LABELS = {*RUN_BY_A_MACHINE, *(f"{label} fragment" for label in RUN_BY_A_MACHINE), ON_A_CLUSTER, "text"}
ELSEWHERE = {
    "docs/spark.md": "tests/spark/test_documented.py, where there is a Spark",
    "docs/audit-your-own.md": "tests/spark/test_audit_your_own.py, likewise",
}
ONLY_SHOWN = "tidewheel topic delete winter-sale"
"""A command that shows what would be deleted, and ends with a code that says that nothing was."""
UNKNOWN_HERE = 4
"""The exit code of what is refused since it names what only a reader's store has."""


@dataclass
class Block:
    """One code block: its page, the line that it begins at, its label and its text."""

    page: str
    line: int
    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the code blocks of a page."""
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    for one in found:
        yield Block(page, one.string.count("\n", 0, one.start()) + 1, one[1].strip(), one[2])


@dataclass
class Place:
    """Where a page's blocks run: an empty folder, and a broker."""

    folder: Path
    broker: BrokerProcess

    @property
    def environment(self) -> dict[str, str]:
        """What a process here sees."""
        own = {"HOME": str(self.folder), "TIDEWHEEL_HTTP": self.broker.http}
        return {**os.environ, **own, "NO_COLOR": "1", "COLUMNS": "200"}

    def here(self, text: str) -> str:
        """A text with the addresses of this broker in place of the usual ones."""
        for usual, ours in (("8081", self.broker.listen), ("8088", self.broker.http)):
            text = re.sub(rf"(127\.0\.0\.1|localhost):{usual}", ours, text)
        return text

    def run(self, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a process to its end."""
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=self.environment | more,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


HALF = """
import os

from rocketmq import ClientConfiguration, Credentials, Message, Producer, TransactionChecker

class Silent(TransactionChecker):
    def check(self, message):
        raise NotImplementedError

producer = Producer(ClientConfiguration("127.0.0.1:8081", Credentials()), ["order-created"], Silent())
producer.startup()
message = Message()
message.topic, message.keys, message.body = "order-created", "order-17", b"17"
producer.send(message, producer.begin_transaction())
os._exit(0)
"""


def prepare(place: Place, block: Block) -> None:
    """Make what a block takes for granted: a transaction that is open, a user's secret in a file."""
    if re.search(r"^tidewheel txn .*\bID\b", block.text, re.MULTILINE):
        place.run(sys.executable, "-c", place.here(HALF))
        (half,) = json.loads(run_inside(place, ["txn", "ls", "--json"], {}))
        block.text = re.sub(r"\bID\b", half["transaction_id"], block.text)
    for name in re.findall(r"--secret-key-file (\S+)", block.text):
        (place.folder / name).write_text("not-the-secret")


def run_python(place: Place, block: Block) -> None:
    """Run a program; a test is run by pytest."""
    is_test = re.search(r"^def test_", block.text, re.MULTILINE) is not None
    program = place.folder / ("test_it.py" if is_test else "app.py")
    program.write_text(place.here(block.text))
    how = ("-m", "pytest", "-q", "-p", "no:cacheprovider") if is_test else ()
    ran = place.run(sys.executable, *how, program)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    CHECKS.get(block.text, lambda *_: None)(place, ran.stdout)


def run_bash(place: Place, block: Block) -> None:
    """Run the commands of a block, one after the other."""
    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
        words = shlex.split(place.here(line), comments=True)
        if words:
            run_line(place, words)


def run_line(place: Place, words: list[str]) -> None:
    """Run one command, with its variables before and where its output goes behind it."""
    more = dict(word.split("=", 1) for word in words if re.match(r"TIDEWHEEL_\w+=", word))
    words = [word for word in words if word.split("=")[0] not in more]
    words, into = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
    name = Path(words[0]).name
    assert name in RUNNERS, f"nobody runs {name} here: label the block as a fragment, and say why"
    said = RUNNERS[name](place, words[1:], more)
    if into is not None:
        (place.folder / into).write_text(said)


def run_tidewheel(place: Place, arguments: list[str], more: dict[str, str]) -> str:
    """Run a command of ours: in this process, unless it is one that serves or speaks gRPC."""
    if arguments[0] == "serve":
        return run_broker(place, arguments)
    if arguments[0] == "doctor":
        ran = place.run(*COMMAND, *arguments, **more)
        assert ran.returncode in (0, 1), ran.stdout + ran.stderr  # 1: what it found is not well
        assert "Traceback" not in ran.stderr
        return ran.stdout
    return run_inside(place, arguments, more)


def run_inside(place: Place, arguments: list[str], more: dict[str, str]) -> str:
    """Run a command in this process."""
    capture = place.folder / "said"
    with pytest.MonkeyPatch.context() as patch, capture.open("w+") as said:
        patch.chdir(place.folder)
        for variable, value in (place.environment | more).items():
            patch.setenv(variable, value)
        patch.setattr(sys, "stdout", said)
        patch.setattr(sys, "stderr", said)
        try:
            main(arguments)
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
        said.flush()
    text = capture.read_text()
    assert code == 0 or (code == UNKNOWN_HERE and not text.startswith("Traceback")), (
        f"tidewheel {' '.join(arguments)} ended with {code}: {text}"
    )
    return text


def run_broker(place: Place, arguments: list[str]) -> str:
    """Start a broker as printed, but on free ports, and end it when it serves."""
    ready = place.folder / f"ready-{time.monotonic_ns()}"
    free = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready)]
    if "--store" not in arguments:
        free += ["--store", str(place.folder / ready.with_suffix(".store").name)]
    if "--segment-bytes" not in arguments:
        free += ["--segment-bytes", str(1 << 24)]
    command = [*COMMAND, *arguments, *free]
    log = place.folder / "serve.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            command, cwd=place.folder, env=place.environment, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        ends = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, "the broker does not get ready"
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
    assert code == 0, log.read_text()
    return ""


def run_curl(place: Place, arguments: list[str], _: dict[str, str]) -> str:
    """Run curl where there is one; a request that is refused for its form has said so."""
    if shutil.which("curl") is None:
        return ""
    ran = place.run("curl", "--silent", "--show-error", "--write-out", "\n%{http_code}", *arguments)
    assert ran.returncode == 0, ran.stderr
    body, _, status = ran.stdout.rpartition("\n")
    assert status in ("200", "201", "202", "404", "409"), f"curl {' '.join(arguments)}: {status} {body}"
    json.loads(body)
    return body


def run_script(place: Place, block: Block) -> None:
    """Run a block as a script of a shell or of PHP, where there is that; a curl that is refused ends it."""
    runner = {"sh": "bash", "php": "php"}[block.label]
    for program in (runner, "curl"):
        if shutil.which(program) is None:
            warnings.warn(f"a block of {block.label} was not run: {program} is not installed", stacklevel=1)
            return
    script = place.folder / f"script.{block.label}"
    script.write_text(place.here(block.text))
    (place.folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n")
    strict = ("-euo", "pipefail") if runner == "bash" else ()
    ran = place.run(runner, *strict, script)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the deadline" not in block.text or ran.stdout.endswith("the deadline: CANCELLED\n"), ran.stdout


RUNNERS: dict[str, Callable[[Place, list[str], dict[str, str]], str]] = {
    "tidewheel": run_tidewheel,
    "curl": run_curl,
}


def read_json(_: Place, block: Block) -> None:
    """Read what is shown as JSON, a document or a line each."""
    json.loads(block.text)


def read_toml(place: Place, block: Block) -> None:
    """Read a file of settings as the broker does, and a mapping as the audit does."""
    assert tomllib.loads(block.text)
    file = place.folder / "shown.toml"
    file.write_text(block.text)
    if block.page == "docs/audit.md":
        from spark_jobs.inputs.mapping import read_mapping

        read_mapping(file)
    else:
        run_inside(place, ["config", "show", "--config", str(file)], {})


def read_sql(_: Place, block: Block) -> None:
    """Read filters as the broker does, and statements as SQLite does."""
    if block.page == "docs/filters.md":
        for line in block.text.splitlines():
            parse_sql(line)
        return
    with sqlite3.connect(":memory:") as database:
        database.executescript(block.text)


RUNS: dict[str, Callable[[Place, Block], None]] = {
    "python": run_python,
    "bash": run_bash,
    "sh": run_script,
    "php": run_script,
    "json": read_json,
    "toml": read_toml,
    "sql": read_sql,
}


def check_client(_: Place, printed: str) -> None:
    assert printed == "CANCELLED\ntimed out: {'order': 123}\n"


def check_lateness(_: Place, printed: str) -> None:
    sent, received = printed.splitlines()
    assert sent.startswith("sent 01")
    assert re.fullmatch(r"received order 123 timed out (\d+) ms after it was due", received), received


def check_transaction(place: Place, _: str) -> None:
    with sqlite3.connect(place.folder / "shop.db") as database:
        assert database.execute("SELECT id FROM orders").fetchall() == [(7,)]
    shown = run_inside(place, ["txn", "show", "order-7", "--topic", "order-created"], {})
    assert "COMMITTED" in shown.splitlines()[0]


def check_test(_: Place, printed: str) -> None:
    assert "1 passed" in printed


def program_of(page: str, number: int) -> str:
    """Return the text of a page's program, counted from 0."""
    return [block.text for block in blocks_of(page) if block.label == "python"][number]


CHECKS = {
    program_of("README.md", 0): check_client,
    program_of("README.md", 1): check_test,
    program_of("docs/clients.md", 0): check_lateness,
    program_of("docs/transactions.md", 0): check_transaction,
    program_of("docs/testing.md", 0): check_test,
}


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_what_a_page_shows_runs(page: str, tmp_path: Path) -> None:
    shown = [one for one in blocks_of(page) if one.label in RUNS]
    broker = BrokerProcess(tmp_path)
    place, failures = Place(tmp_path, broker), []
    if any(one.label in ("python", "bash", "sh", "php") for one in shown):
        broker.start()
    try:
        for block in shown:
            try:
                prepare(place, block)
                RUNS[block.label](place, block)
            except Exception as error:  # each block of the page is told
                failures.append(f"{block}: {error!r}")
    finally:
        broker.stop()
    assert failures == [], "\n".join(failures)


def test_the_commands_of_the_ten_tasks_run(tmp_path: Path) -> None:
    table = (ROOT / "docs/console.md").read_text().partition("## Ten tasks")[2]
    commands = re.findall(r"`(tidewheel [^`]+)`", table)
    assert len(commands) >= 10
    broker = BrokerProcess(tmp_path)
    broker.start()
    try:
        for topic in ("spring-sale", "winter-sale", "reminders"):
            broker.post("/api/topics", {"name": topic})
        broker.post("/api/messages", {"topic": "orders", "body": "1042", "keys": ["order:1042"]})
        write_run(tmp_path / "audit-out", "20261122T020000Z")
        place, only_shown = Place(tmp_path, broker), commands.pop(commands.index(ONLY_SHOWN))
        shown = run_tidewheel(place, shlex.split(only_shown)[1:], {})
        assert "nothing was done: add --yes" in shown
        block = Block("docs/console.md", 0, "bash", "\n".join(commands))
        prepare(place, block)
        run_bash(place, block)
    finally:
        broker.stop()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    wrong = [f"{one}: {one.label!r}" for one in blocks_of(page) if one.label not in LABELS]
    assert wrong == [], f"a code block begins with one of {sorted(LABELS)}"


DEFINES = re.compile(r"session\.(execute|run_sync)\(.*(CREATE|ALTER|DROP|create_all)")


def test_no_program_defines_tables_within_its_transaction() -> None:
    """MySQL and MariaDB commit by it what came before."""
    wrong = [str(one) for page in PAGES for one in blocks_of(page) if DEFINES.search(one.text)]
    assert wrong == []


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_the_tables_of_the_page_are_those_of_the_barrier(dialect: str) -> None:
    [shown] = [one.text for one in blocks_of("docs/transactions.md") if "TABLE tidewheel_barrier" in one.text]
    assert shown.split() == barrier_sql(dialect).split()


def test_few_blocks_cannot_run() -> None:
    fragments = [str(one) for page in PAGES for one in blocks_of(page) if one.label.endswith("fragment")]
    assert len(fragments) <= 12, fragments


README = (ROOT / "README.md").read_text()
WORDS_MAX = 600
EXTRAS = {
    found
    for page in PAGES
    for found in re.findall(r"(tidewheel(?:-client)?)\[([\w,]+)\]", (ROOT / page).read_text())
}
DISTRIBUTIONS = {"tidewheel": ".", "tidewheel-client": "distributions/client"}


@pytest.mark.parametrize(("distribution", "extra"), sorted(EXTRAS))
def test_every_extra_that_is_named_exists(distribution: str, extra: str) -> None:
    described = (ROOT / DISTRIBUTIONS[distribution] / "pyproject.toml").read_text()
    assert set(extra.split(",")) <= set(tomllib.loads(described)["project"]["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_exists(page: str) -> None:
    linked = re.findall(r"\]\((?!https?:)([^)#\s]*)[^)]*\)", (ROOT / page).read_text())
    gone = [path for path in linked if not ((ROOT / page).parent / path).exists()]
    assert gone == []


def test_the_readme_is_read_in_a_few_minutes_and_leads_to_every_page() -> None:
    assert len(README.split()) <= WORDS_MAX
    index = (ROOT / "docs" / "README.md").read_text()
    assert [page for page in DOCS if page != "docs/README.md" and f"({Path(page).name})" not in index] == []
