"""The command table: quick to list, and every error is one line and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from services.cli import commands
from services.cli import main as command
from services.process.errors import PortTaken, StdoutFailed
from services.settings.errors import InputUnreadable
from tidewheel.command import without_settings
from tidewheel.errors import BrokerUnreachable

ROOT = Path(__file__).parents[4]


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command()
    def refuse() -> None:
        raise PortTaken("127.0.0.1:8081 belongs to pid 7. Use --listen.")

    monkeypatch.setitem(commands.COMMANDS, "refuse", commands.Entry("refusing", "Refuse."))
    monkeypatch.setitem(sys.modules, "services.cli.refusing", SimpleNamespace(app=app))


@pytest.mark.usefixtures("refusing")
def test_an_error_is_its_code_its_sentence_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["refuse"])
    assert ended.value.code == PortTaken.exit_code
    assert capsys.readouterr().err == (
        "TW-101 The port is in use. 127.0.0.1:8081 belongs to pid 7. Use --listen.\n"
    )


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("config", "--help")])
def test_whoever_has_read_enough_is_shown_no_trace(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "tidewheel", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    os.close(writer)
    assert ended.stderr == ""
    assert ended.returncode != 0


def ended_with(redirected: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """How a command ends whose streams a shell has redirected."""
    words = ["bash", "-c", f'exec "$@" {redirected}', "bash", sys.executable, "-m", "tidewheel", *arguments]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=without_settings(os.environ))


@pytest.mark.parametrize("redirected", [">/dev/full", ">&-"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("version",),
        ("version", "--json"),
        ("config", "show"),
        ("config", "example"),
        ("config", "--help"),
        ("sample", "python"),
    ],
    ids=" ".join,
)
def test_a_result_that_cannot_be_written_is_an_error(arguments: tuple[str, ...], redirected: str) -> None:
    """A full disk, or a descriptor that is closed: with a sentence, and without a trace."""
    ended = ended_with(redirected, *arguments)
    assert ended.returncode == StdoutFailed.exit_code
    assert ended.stderr.startswith(f"{StdoutFailed.code} Standard output cannot be written. ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-", "<&- >&- 2>&-"])
def test_an_error_that_nobody_can_be_told_is_an_exit_code(redirected: str) -> None:
    ended = ended_with(redirected, "topic", "ls", "--http", "127.0.0.1:1")
    assert (ended.returncode, ended.stdout, ended.stderr) == (BrokerUnreachable.exit_code, "", "")
    assert ended_with(redirected, "servee").returncode == 2, "a mistake that Typer tells"


def test_what_is_not_printed_need_not_be_writable() -> None:
    assert ended_with(">&-", "topic", "ls", "--http", "127.0.0.1:1").returncode == BrokerUnreachable.exit_code


def test_stdin_that_cannot_be_read_is_named() -> None:
    ended = ended_with("<&-", "send", "t", "-", "--http", "127.0.0.1:1")
    assert (ended.returncode, ended.stderr) == (
        InputUnreadable.exit_code,
        "TW-121 The input file cannot be read. stdin: Bad file descriptor.\n",
    )


def loaded(*arguments: str) -> tuple[str, set[str]]:
    """What a command prints in a process of its own, and the modules that it has imported at its end."""
    listing = (
        "import sys, json; from tidewheel.command import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('loaded:', json.dumps(sorted(sys.modules)))"
    )
    command = [sys.executable, "-c", listing, *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    printed, _, modules = shown.rpartition("loaded: ")
    return printed, set(json.loads(modules))


HEAVY = {
    *("grpc", "cryptography", "numpy", "google", "sqlalchemy", "redis", "rocketmq", "pyspark", "pyarrow"),
    *("uvicorn", "starlette", "structlog", "prometheus_client", "apscheduler", "lark", "jinja2", "asyncio"),
    *("pydantic", "importlib.metadata"),
}
"""What no command that asks a broker needs, each dearer than what the command does."""


def test_help_names_every_command_and_imports_no_library() -> None:
    printed, modules = loaded("--help")
    assert all(f"  {name} " in printed for name in command.COMMANDS)
    assert sorted(modules & (HEAVY | {"typer", "rich", "http.client"})) == []
    assert len(modules) < 120, "what else has --help imported?"


@pytest.mark.parametrize(
    "arguments",
    [
        ("timer", "ls", "--limit", "20"),
        ("group", "ls"),
        ("dlq", "ls"),
        ("topic", "list"),
        ("txn", "ls"),
        ("schedule", "ls"),
        ("send", "orders", "7", "--timer-key", "order:7", "--in", "30m"),
    ],
    ids=" ".join,
)
def test_a_command_that_asks_a_broker_imports_no_library_of_the_broker(arguments: tuple[str, ...]) -> None:
    _, modules = loaded(*arguments, "--http", "127.0.0.1:1")
    assert sorted(modules & HEAVY) == []


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_a_tail_of_nothing_is_refused(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It went on for ever."""
    with pytest.raises(SystemExit) as ended:
        command.main(["tail", "t", "--limit", limit, "--http", "127.0.0.1:1"])
    assert ended.value.code == 2
    assert "Invalid value for '--limit'" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["x", "0", "1001"])
def test_what_must_be_converted_is_converted_and_judged(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["timer", "ls", "--limit", wrong])
    assert ended.value.code == 2
    assert "Invalid value for '--limit'" in capsys.readouterr().err


def test_a_typing_slip_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["servee"])
    assert ended.value.code == 2
    assert "Did you mean 'serve'?" in capsys.readouterr().err


def test_version_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["version", "--json"])
    assert ended.value.code == 0
    assert '"grpcio"' in capsys.readouterr().out


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_the_settings_in_force_are_shown_without_the_cluster_s_password(
    more: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_CLUSTER", "postgresql://u:p/ss@db/orders")
    with pytest.raises(SystemExit) as ended:
        command.main(["config", "show", *more])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "postgresql://u@db/orders" in shown
    assert "p/ss" not in shown
