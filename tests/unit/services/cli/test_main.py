"""The command table: quick to list, and every error is one line and an exit code."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import typer

from commitlog.errors import PortTaken
from services.cli import main as command


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command()
    def refuse() -> None:
        raise PortTaken("127.0.0.1:8081 belongs to pid 7. Use --listen.")

    monkeypatch.setitem(command.COMMANDS, "refuse", command.Entry("refusing", "Refuse."))
    monkeypatch.setitem(sys.modules, "refusing", SimpleNamespace(app=app))


@pytest.mark.usefixtures("refusing")
def test_an_error_is_its_code_its_sentence_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["refuse"])
    assert ended.value.code == PortTaken.exit_code
    assert capsys.readouterr().err == (
        "TW-101 The port is in use. 127.0.0.1:8081 belongs to pid 7. Use --listen.\n"
    )


def test_help_names_every_command_and_imports_none_of_them() -> None:
    listing = (
        "import sys; from services.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'grpc', 'sqlalchemy', 'pyspark', 'uvicorn', 'redis', 'rocketmq'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in command.COMMANDS)
    assert "loaded: []" in shown


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
