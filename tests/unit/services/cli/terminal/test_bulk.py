"""How far a task is: one line that is rewritten on a terminal, now and then a line in a pipe."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from services.cli.terminal.bulk import ERASE, SAY_SECONDS, Line


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_which_is_gone_at_the_end() -> None:
    terminal = Terminal()
    line = Line(terminal)
    for done in (1, 2, 2, 3):
        line.say(f"cancel  {done} of 3")
    line.end()
    assert terminal.getvalue() == "".join(f"{ERASE}cancel  {done} of 3" for done in (1, 2, 3)) + ERASE


@given(st.lists(st.integers(0, 60), max_size=50))
def test_a_pipe_gets_the_first_line_and_one_each_ten_seconds_at_most(steps_s: list[int]) -> None:
    now_s, stream = [0.0], io.StringIO()
    line = Line(stream, lambda: now_s[0])
    for done, step_s in enumerate(steps_s):
        now_s[0] += step_s
        line.say(f"{done}")
    line.end()
    said = stream.getvalue().splitlines()
    assert said[:1] == ["0"][: len(steps_s)]
    assert len(said) <= 1 + sum(steps_s[1:]) / SAY_SECONDS
