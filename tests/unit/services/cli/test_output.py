"""Tables: ids are never broken, nothing is cut, and off a terminal a row is a line."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from services.cli.output import print_table, table_lines

ID = "01F3A2B4C5D6E7F8091A2B3C4D5E6F7081"
WHY = "the consumer held it for an hour and said nothing, and then it came again and again"
ROWS = [(ID, WHY), ("short", "because")]


def test_a_row_is_one_line_where_nobody_says_how_wide_it_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    wide = [ID * 20, WHY * 20]
    print_table(("id", "why"), [wide], prose=("why",))
    heading, row = capsys.readouterr().out.splitlines()
    assert row == "  ".join(wide)
    assert heading.split() == ["id", "why"]
    assert "\033" not in heading


def test_prose_folds_on_a_narrow_terminal_and_ids_do_not() -> None:
    lines = list(table_lines(("id", "why"), ROWS, prose=("why",), width=70))
    assert all(len(line) <= 70 for line in lines)
    assert sum(ID in line for line in lines) == 1
    told = " ".join(line.replace(ID, "").strip() for line in lines[1:-1])
    assert " ".join(told.split()) == WHY


@pytest.mark.parametrize("width", [1, 20, 40])
def test_no_terminal_is_so_narrow_that_an_id_is_broken(width: int) -> None:
    lines = list(table_lines(("id", "why"), ROWS, prose=("why",), width=width))
    assert sum(ID in line for line in lines) == 1


def test_columns_stand_below_each_other_whatever_their_letters() -> None:
    lines = list(table_lines(("whom", "n"), [("愛新覚羅", 1), ("é", 2), ("plain", 3)]))
    assert lines == ["whom      n", "愛新覚羅  1", "é         2", "plain     3"]


def test_no_cell_moves_the_cursor_or_begins_a_line() -> None:
    (_, row) = table_lines(("a", "b"), [("x\ny\033[2J", "z")])
    assert row == "x y [2J  z"


def test_a_terminal_gets_what_it_has_room_for() -> None:
    program = (
        f"from services.cli.output import print_table\nprint_table(('id', 'why'), {ROWS!r}, prose=('why',))"
    )
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "72", "NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", program], stdout=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 65_536).decode().splitlines()
    os.close(ours)
    assert len(shown) > 3
    assert all(len(line) <= 72 for line in shown)
