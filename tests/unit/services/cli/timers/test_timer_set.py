"""The rows of a file for `timer set`: headers that cannot be, and files without rows, end with a sentence."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import limits
from services.cli.timers.timer_set import (
    BATCH_BYTES,
    COLUMNS,
    EarlierRows,
    Format,
    Replaced,
    Result,
    Row,
    batches,
    replaced_lines,
    rest_of,
    rows_of,
    set_many,
    set_rows,
)
from services.http.api import Api
from services.ops.messages.sending import NewMessage
from services.settings.errors import InputUnreadable
from tidewheel.errors import BrokerUnreachable, Busy, ClientMistake, TidewheelError


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


def test_an_empty_timer_key_is_missing_as_lists_of_timers_print_it(tmp_path: Path) -> None:
    path = tmp_path / "timers"
    path.write_text('{"topic": "t", "in": "1h", "body": "x", "timer_key": ""}\n')
    (row,) = rows_of(str(path), Format.JSONL, "")
    assert (row.problem, "timer_key" in row.fields) == ("", False)
    path.write_text("topic,in,body,timer_key\nt,1h,x,\n")
    (row,) = rows_of(str(path), Format.CSV, "")
    assert (row.problem, "timer_key" in row.fields) == ("", False)


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


@pytest.mark.parametrize("cells", ["t,x", "t,x,1h,a,b"])
def test_a_row_with_too_few_or_too_many_cells_is_refused(tmp_path: Path, cells: str) -> None:
    [row] = rows(tmp_path, f"topic,body,in,tag\n{cells}\n")
    count = cells.count(",") + 1
    assert (row.line, row.fields) == (2, {})
    assert row.problem.startswith(f"The row has {count} cells and the header has 4: give a cell for each")


def test_a_row_of_empty_cells_is_refused(tmp_path: Path) -> None:
    [row] = rows(tmp_path, "topic,body,in,tag\n,,,\n")
    assert row.problem == "All cells of the row are empty."


class Calls(Api):
    """Answers the batches before number `failing` with receipts, and raises `error` for the others."""

    def __init__(self, failing: int, error: TidewheelError) -> None:
        self._failing, self._error, self.batches = failing, error, list[list[dict[str, Any]]]()

    def post(self, *path: str, body: Any, wait_seconds: float | None = None) -> Any:
        """Return a receipt for each message."""
        if len(self.batches) == self._failing:
            raise self._error
        self.batches.append(body["messages"])
        return {
            "messages": [
                {"physical_offset": "7", "recall_handle": "", "replaced_offset": None, "created_topic": None}
                for _ in body["messages"]
            ]
        }


def numbered(count: int) -> Iterator[Row]:
    """Yield rows of the lines 2 to `count + 1`."""
    for line in range(2, count + 2):
        yield Row(line, {"topic": "t", "body": "x", "in": "1h"})


def torn() -> Iterator[Row]:
    """Yield rows, and raise `InputUnreadable` within the second batch."""
    yield from numbered(1_500)
    raise InputUnreadable("torn.")


@pytest.mark.parametrize("error", [Busy("Later."), BrokerUnreachable("None."), ClientMistake("No.")])
def test_an_error_in_mid_file_keeps_the_result_of_the_rows_before_it(error: TidewheelError) -> None:
    result = set_rows(Calls(2, error), numbered(2_500))
    assert (result.sent, result.last_line, result.error) == (2_000, 2_001, error)
    assert result.shape({}, [])["not_sent_after_line"] == 2_001
    said = rest_of(result.last_line, error)
    assert "the rows after line 2001" in said
    assert ("there is no answer" in said) == isinstance(error, BrokerUnreachable)


class Interrupted(Calls):
    """Answers the batches, with topics that they created. An interrupt ends the lookup of topics."""

    def post(self, *path: str, body: Any, wait_seconds: float | None = None) -> Any:
        """Return a receipt for each message, with a created topic."""
        answer = super().post(*path, body=body, wait_seconds=wait_seconds)
        for one, message in zip(answer["messages"], body["messages"], strict=True):
            one["created_topic"] = {"name": message["topic"], "queue_count": 4}
        return answer

    def get(self, *path: str, **query: object) -> Any:
        """Raise `KeyboardInterrupt`."""
        raise KeyboardInterrupt


def test_an_interrupt_while_topics_are_looked_up_does_not_lose_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = Interrupted(9, Busy())
    monkeypatch.setattr("services.cli.timers.timer_set.broker_at", lambda http: api)
    path = tmp_path / "timers.csv"
    path.write_text("topic,body,in\nnew,x,1h\n")
    with pytest.raises(KeyboardInterrupt):
        set_many(str(path), http="http://broker")
    assert capsys.readouterr().out == "1 timer was set, 0 rows were refused\n"


def test_the_rows_before_an_unreadable_part_of_a_file_are_set() -> None:
    result = set_rows(Calls(9, Busy()), torn())
    assert (result.sent, result.last_line, type(result.error)) == (1_500, 1_501, InputUnreadable)


def test_a_row_replaces_the_timer_of_an_earlier_row_only_if_that_row_set_it() -> None:
    earlier = EarlierRows()
    assert earlier.replaced_by(2, 100, None) is None
    assert earlier.replaced_by(3, 200, 100) == 2
    assert earlier.replaced_by(4, 300, 150) is None, "a timer that another producer has set"
    assert earlier.replaced_by(5, 200, 100) is None, "the repeat of line 3, with the first answer"
    assert earlier.replaced_by(6, 400, 200) == 3
    assert earlier.replaced_by(7, 500, 50) is None, "a timer that was pending before"


def test_many_rows_that_replaced_earlier_ones_are_counted_and_the_first_are_named() -> None:
    result = Result(replaced_rows=[Replaced(line, line - 1) for line in range(3, 40)])
    lines = list(replaced_lines(result.replaced_rows))
    assert lines[0] == "line 3: replaced the timer of line 2"
    assert lines[-2:] == [
        "and 27 more rows (--json lists all)",
        "37 rows replaced a timer of an earlier row: a timer key has one pending timer",
    ]
    assert len(lines) == 12
    assert list(replaced_lines([])) == []


def test_batches_are_limited_by_their_bytes_as_json() -> None:
    quotes = [Row(line, {"topic": "t", "body": '"' * (1 << 20)}) for line in range(2, 8)]
    sizes = [len(json.dumps([row.fields for row in batch])) for batch in batches(quotes)]
    assert len(sizes) == 6
    assert max(sizes) < BATCH_BYTES


def test_a_body_that_is_too_large_as_json_is_sent_in_base64() -> None:
    body = '"' * limits.BODY_BYTES_MAX
    [[row]] = batches([Row(2, {"topic": "t", "body": body, "in": "1h"})])
    assert row.problem == ""
    assert b64decode(row.fields["body_base64"]).decode() == body
    assert "body" not in row.fields
    assert len(json.dumps({"messages": [row.fields]})) <= limits.HTTP_MESSAGES_BYTES_MAX


@pytest.mark.parametrize("body", ["x" * (7 << 20), "\ud800" * (2 << 20)])
def test_a_row_that_is_too_large_for_a_request_is_refused_alone(body: str) -> None:
    found = [row for batch in batches([Row(2, {"body": body}), Row(3, {"body": "x"})]) for row in batch]
    assert [bool(row.problem) for row in found] == [True, False]
    assert "bytes as JSON, the limit is" in found[0].problem
