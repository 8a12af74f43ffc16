"""The rows of a file for `timer set`: headers that cannot be, and files without rows, end with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.timers.timer_set import Format, rows_of
from services.settings.errors import InputUnreadable


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("topic;body;in\nt;x;1h\n", "separated by semicolons: separate them by commas"),
        ("topic\tbody\tin\nt\tx\t1h\n", "separated by tabs"),
        ("topic,body,in,topic\nt,x,1h,u\n", "the column 'topic' twice"),
        ("", "has no rows. Give a header and a row for each timer"),
        ("\n\n", "has no rows"),
        ("topic,body,in\n", "has no rows"),
    ],
)
def test_a_csv_file_that_cannot_be_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "timers.csv"
    path.write_text(content)
    with pytest.raises(InputUnreadable, match=sentence):
        list(rows_of(str(path), Format.CSV, ""))


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_json_lines_without_a_row_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "timers.jsonl"
    path.write_text(content)
    with pytest.raises(InputUnreadable, match="Give one object a line"):
        list(rows_of(str(path), Format.JSONL, ""))


def test_columns_without_a_name_and_semicolons_in_a_column_are_let_pass(tmp_path: Path) -> None:
    path = tmp_path / "timers.csv"
    path.write_text("topic,body,in,,\nt,a;b,1h,,\n")
    [row] = rows_of(str(path), Format.CSV, "")
    assert (row.fields["body"], row.problem) == ("a;b", "")
