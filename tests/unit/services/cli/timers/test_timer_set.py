"""The rows of a file for `timer set`: headers that cannot be, and files without rows, end with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.timers.timer_set import COLUMNS, Format, Row, rows_of
from services.ops.messages.sending import NewMessage
from services.settings.errors import InputUnreadable


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("topic;body;in\nt;x;1h\n", "separated by semicolons: separate them by commas"),
        ("topic\tbody\tin\nt\tx\t1h\n", "separated by tabs"),
        ("topic,body,in,tagg\nt,x,1h,u\n", "the unknown column 'tagg'. The columns are topic, body, "),
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


def rows(tmp_path: Path, content: str) -> list[Row]:
    """Return the rows of a CSV file."""
    path = tmp_path / "timers.csv"
    path.write_text(content)
    return list(rows_of(str(path), Format.CSV, ""))


@pytest.mark.parametrize("torn", ['t,"a,1h\nt,b,1h\nt,c"x,1h\n', 't,"a,1h\nt,b,1h\n', 't,"a,1h'])
def test_no_row_is_read_from_a_quote_on_that_is_not_closed(tmp_path: Path, torn: str) -> None:
    before, refused = rows(tmp_path, "topic,body,in\nt,x,1h\n" + torn)
    assert (before.line, before.problem) == (2, "")
    assert refused.line == 3
    assert refused.problem.startswith("a quote is not closed")


def test_a_cell_that_goes_on_after_its_quote_is_refused_alone(tmp_path: Path) -> None:
    refused, row = rows(tmp_path, 'topic,body,in\nt,"a"b,1h\nt,"say ""hi""\non two lines",1h\n')
    assert (refused.line, refused.problem.partition(".")[0]) == (
        2,
        "A cell continues after its closing quote",
    )
    assert (row.line, row.fields["body"], row.problem) == (3, 'say "hi"\non two lines', "")


def test_a_quote_of_the_header_that_is_not_closed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match="line 1: a quote is not closed"):
        rows(tmp_path, 'topic,"body,in\nt,x,1h\n')


@pytest.mark.parametrize(
    ("cell", "keys"),
    [
        ("k1", ["k1"]),
        (" k1  k2 ", ["k1", "k2"]),
        ('"k1,k2"', ["k1", "k2"]),
        ('"k1, k2"', ["k1", "k2"]),
        ('"[""a,b"", ""c""]"', ["a,b", "c"]),
    ],
)
def test_the_keys_of_a_cell(tmp_path: Path, cell: str, keys: list[str]) -> None:
    [row] = rows(tmp_path, f"topic,body,in,keys\nt,x,1h,{cell}\n")
    assert (row.fields["keys"], row.problem) == (keys, "")


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ("[k1],,", "keys is no JSON list of texts"),
        ("[1],,", "keys is no JSON list of texts"),
        (",region=eu,", "properties is no JSON object"),
        (",[],", "properties is no JSON object"),
        (',"{""shop"": ""7""}",8', "The property 'shop' is given twice"),
    ],
)
def test_keys_and_properties_that_cannot_be_are_refused(tmp_path: Path, cells: str, sentence: str) -> None:
    [row] = rows(tmp_path, f"topic,body,in,keys,properties,properties.shop\nt,x,1h,{cells}\n")
    assert row.problem.startswith(sentence)


def test_the_columns_are_the_fields_of_a_message_without_its_verbs() -> None:
    fields = {field.alias or name for name, field in NewMessage.model_fields.items()}
    assert set(COLUMNS) == fields - {"cancel", "move", "fire"}


def test_a_cell_without_a_column_name_is_refused(tmp_path: Path) -> None:
    [row] = rows(tmp_path, "topic,body,in,,\nt,x,1h,,y\n")
    assert row.problem.startswith("A cell is in a column without a name")
