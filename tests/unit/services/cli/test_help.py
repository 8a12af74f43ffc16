"""What every command's help and names have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from services.cli.commands import COMMANDS
from services.cli.main import main
from services.cli.root import load


def every(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command and each group of commands below one."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from every((*path, name), below)


def all_commands() -> list[tuple[tuple[str, ...], Any]]:
    """Return every command there is, with the words that call it."""
    return [pair for name in COMMANDS for pair in every((name,), load(name))]


def test_every_default_is_shown_and_every_option_explained() -> None:
    for path, command in all_commands():
        for option in command.params:
            where = " ".join((*path, *option.opts))
            assert option.help, where
            if option.default not in (None, "", (), False) and hasattr(option, "show_default"):
                assert option.show_default, where


def test_choices_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for path, shown in (
        (("serve",), ("sync|async", "earliest|latest", "[default: 127.0.0.1:8081]", "text|json")),
        (("topic", "create"), ("normal", "fifo", "lite", "[default: mixed]")),
        (("schedule", "set"), ("skip", "once", "all", "[default: once]")),
        (("txn", "ls"), ("open", "expired", "[default: all]")),
    ):
        with pytest.raises(SystemExit):
            main([*path, "--help"])
        said = capsys.readouterr().out
        assert all(words in said for words in shown), (path, said)


def test_every_list_is_ls_and_understood_as_list() -> None:
    lists = [(path[:-1], command) for path, command in all_commands() if path[-1] == "ls"]
    assert len(lists) >= 10
    for path, command in all_commands():
        if path[-1] == "list":
            assert command.hidden
    twins = {path[:-1] for path, _ in all_commands() if path[-1] == "list"}
    assert twins == {path for path, _ in lists}


def test_reason_is_the_note_that_is_kept_wherever_it_is() -> None:
    reasons = {
        path: option.help
        for path, command in all_commands()
        for option in command.params
        if "--reason" in option.opts
    }
    assert ("dlq", "redrive") in reasons
    assert ("timer", "cancel") in reasons
    assert all(said.startswith("Reason") for said in reasons.values()), reasons


def test_the_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("tidewheel 0.")


@pytest.mark.parametrize("path", [("serve",), ("config", "show"), ("dlq", "redrive"), ("audit", "run")])
def test_no_flag_is_cut_on_a_terminal_of_80_columns(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*path, "--help"])
    assert "…" not in capsys.readouterr().out
