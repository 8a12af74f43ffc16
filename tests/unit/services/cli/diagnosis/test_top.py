"""`tidewheel top` on a terminal: drawn in place, and gone at Ctrl-C."""

from __future__ import annotations

import time

import pytest

from services.cli.diagnosis import top
from services.status.judgement import Row, State


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A terminal, and a broker that is asked twice before Ctrl-C."""
    seen: list[int] = []

    def rows_of(*_: object) -> tuple[list[Row], str]:
        seen.append(len(seen))
        return [Row("serving", State.OK, f"look {len(seen)}")], "127.0.0.1:8088"

    def sleep(_: float) -> None:
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(top, "rows_of", rows_of)
    monkeypatch.setattr(time, "sleep", sleep)
    return seen


def test_it_draws_in_place_and_leaves_the_terminal_as_it_was(
    looks: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    top.top(every="2s")
    drawn, _, after = capsys.readouterr().out.partition(top.LEAVE)
    assert drawn.startswith(top.ENTER)
    assert drawn.count(top.HOME) == 2
    assert "look 1" in drawn
    assert "look 2" in after
    assert "\033" not in after


def test_it_gives_the_terminal_back_when_something_breaks(
    looks: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(top, "rows_of", broken)
    with pytest.raises(RuntimeError, match="broken"):
        top.top(every="2s")
    assert capsys.readouterr().out.endswith(top.LEAVE)
