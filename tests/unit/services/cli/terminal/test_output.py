"""Tables: ids are never broken, nothing is cut, and off a terminal a row is a line."""

from __future__ import annotations

import ast
import json
import os
import pty
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.terminal import output
from services.cli.terminal.output import print_table, table_lines
from tidewheel.printable import one_line

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
    (heading, row) = table_lines(("a", "b"), [("x\ny\033[2J\u202e", "z")])
    assert row == r"x\ny\x1b[2J\u202e  z"
    assert heading.index("b") == row.index("z")


def test_a_terminal_gets_what_it_has_room_for() -> None:
    program = (
        "from services.cli.terminal.output import print_table\n"
        f"print_table(('id', 'why'), {ROWS!r}, prose=('why',))"
    )
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "72", "NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", program], stdout=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 65_536).decode().splitlines()
    os.close(ours)
    assert len(shown) > 3
    assert all(len(line) <= 72 for line in shown)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\rTW-000 all is well\n2026-11-27  forged\x9b31m\u202egnp.exe\x7f"
"""What a stranger wrote: a title, a blank screen, a line over another, a forged line, a text turned round."""


@given(st.text())
def test_a_line_of_a_terminal_is_one_line_whatever_a_stranger_wrote(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert all(letter.isprintable() or unicodedata.category(letter) == "Zs" for letter in line)
    assert line == text or not text.isprintable()


def test_letters_signs_and_blanks_of_all_scripts_are_left_alone() -> None:
    assert one_line("order\u3000愛新覚羅\xa0é ✓ 🙂") == "order\u3000愛新覚羅\xa0é ✓ 🙂"
    assert one_line("a\nb\x1b[2J\u202e") == r"a\nb\x1b[2J\u202e"


@pytest.mark.parametrize("call", ["show", "say"])
def test_a_terminal_is_not_moved_by_what_is_printed(call: str) -> None:
    program = f"from services.cli.terminal import output\noutput.{call}({HOSTILE!r})"
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", program], stdout=theirs, stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    assert shown.count("\n") == 1
    assert shown.removesuffix("\r\n").isprintable()
    piped = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (piped.stdout + piped.stderr).decode() == f"{HOSTILE}\n"


OWN_TEXT = {
    "output.py": {"print_json", "print_json_line", "show", "print_table", "say", "offer"},
    "main.py": {"print_and_flush"},
    "config.py": {"show_example", "show_docs"},
    "audit.py": {"show_mapping"},
    "sample.py": {"sample"},
    "demo.py": {"demo"},
    "bulk.py": {"say", "end"},
    "top.py": {"screen_of_its_own", "draw"},
}
"""What prints by itself: only what is ours, or JSON."""
ROOT = Path(output.__file__).parents[1]
SOURCES = [path for path in ROOT.rglob("*.py") if "samples" not in path.parts]


def test_every_command_prints_through_the_one_place_that_writes_out_what_is_not_printable() -> None:
    for path in SOURCES:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                names = [ast.unparse(one.func) for one in ast.walk(function) if isinstance(one, ast.Call)]
                prints = {"print", "typer.echo", "click.echo", "sys.stdout.write", "sys.stderr.write"} & {
                    *names
                }
                assert not prints or function.name in OWN_TEXT.get(path.name, ()), (path.name, function.name)


def test_no_line_that_is_printed_has_a_break_of_our_own() -> None:
    calls = ("output.show", "output.say", "show", "say")
    for path in SOURCES:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in calls:
                texts = [one for part in call.args for one in ast.walk(part) if isinstance(one, ast.Constant)]
                values = [one.value for one in texts if isinstance(one.value, str) and "\n" in one.value]
                assert not values or (values == ["\n"] and ".split(" in ast.unparse(call)), (
                    path.name,
                    values,
                )


@pytest.mark.parametrize("print_it", [output.print_json, output.print_json_line])
def test_half_a_surrogate_pair_is_printed_escaped(
    print_it: Callable[[Any], None], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    print_it({"note": "cut \ud83d", "name": "名"})
    printed = capsysbinary.readouterr().out
    assert json.loads(printed) == {"note": "cut \ud83d", "name": "名"}
    assert "名".encode() in printed
