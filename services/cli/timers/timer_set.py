"""`tidewheel timer set`: many delayed messages from a CSV file or from JSON lines.

    file --> rows --> batches --> POST /api/messages --> a result for each row, by its line

1. A row has the fields of a message over HTTP (`services.ops.messages.sending`), with its time: `in`, `at`,
   `in_ms` or `at_ms`. In CSV, `keys` are separated by blanks or commas, or are a JSON list. A column
   `properties.NAME` is a property, and a column `properties` is a JSON object. An empty cell counts as
   missing. A quoted cell may contain line breaks. The rows from a quote that is not closed are not set,
   because the ends of these rows are unknown.
2. An invalid row is reported with its line number, and the other rows are set. If a row is malformed, the
   broker refuses the whole batch, and the batch is sent again without this row. If the file cannot be read to
   its end, or the broker cannot take a batch, the result contains the rows that were set and the last line
   that was sent.
3. A row with a `timer_key` replaces the pending timer with this key, so that repeating the command sets it
   again. A row with neither `timer_key` nor `idempotency_key` gets an idempotency key that is derived from
   its line and its fields. If the command is repeated within ten minutes, for example after a lost answer,
   such a row is not set twice. A row that replaces a timer of an earlier row of the file is reported with the
   lines of both rows (`EarlierRows`).
4. A body whose JSON text is too large for a request is sent in base64, because quotes and letters outside
   ASCII are longer in JSON. A row that is still too large is refused.

5. A topic that a row created is reported, because its name may be misspelt
   (`services.status.created_topics`).

Cost: one batch in memory, at most `BATCH_ROWS` rows, and about `BATCH_BYTES` bytes or a single row; 16 bytes
for each row with a timer key; and about 100 bytes for each timer that was replaced.
"""

from __future__ import annotations

import bisect
import csv
import json
import re
import shlex
import sys
from array import array
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TextIO

import typer

from commitlog import limits
from services.broker.timers import recall
from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.http.api import Api
from services.settings.errors import InputUnreadable
from services.status.created_topics import created_lines, created_shapes
from services.status.holds import is_held
from services.times.display import now_ms
from tidewheel.errors import AnswerLate, BrokerUnreachable, ClientMistake, ConfigurationError, TidewheelError

BATCH_ROWS: Final = limits.TIMER_BATCH_MAX
BATCH_BYTES: Final = 4 << 20
"""The size of the rows of a batch as JSON. A single row may be larger, up to `ROW_BYTES_MAX`."""
ROW_BYTES_MAX: Final = limits.HTTP_MESSAGES_BYTES_MAX - 1024
RELEASE: Final = ("tidewheel", "topic", "release")
SHOWN_MAX: Final = 100
"""The number of refused rows that are printed. Further rows are only counted."""
REPLACED_SHOWN_MAX: Final = 10
"""The number of rows printed that replaced a timer of an earlier row. Further rows are only counted."""
TIMES: Final = ("in", "at", "in_ms", "at_ms")
COLUMNS: Final = (
    *(
        "topic",
        "body",
        "body_json",
        "body_base64",
        *TIMES,
        "timer_key",
        "unique",
        "keys",
        "tag",
        "properties",
    ),
    *("message_group", "priority", "lite_topic", "idempotency_key"),
)
"""The columns of a CSV file: the fields of a message over HTTP, without the verbs on other timers."""
_PROPERTY: Final = "properties."
_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}
_NUMBERS: Final = ("in_ms", "at_ms", "priority")
_UNCLOSED: Final = (
    'a quote is not closed, and no row from this line on was set. Close the quote, and write "" for a quote '
    "in a quoted cell."
)
_ROW_OF: Final = re.compile(r"messages\.(\d+)(\.?)")


class Format(StrEnum):
    """The format of a file."""

    CSV = "csv"
    JSONL = "jsonl"


class Row(NamedTuple):
    """A row with its line number. `problem` is the reason why it is not sent, or an empty string."""

    line: int
    fields: dict[str, Any]
    problem: str = ""


class Refused(NamedTuple):
    """A row that was not set, with its line number and the code and message of the error."""

    line: int
    code: str
    message: str

    @property
    def sentence(self) -> str:
        """The error as printed. The code and the first sentence of a `ClientMistake` are omitted."""
        if self.code != ClientMistake.code:
            return f"{self.code} {self.message}"
        return self.message.removeprefix(str(ClientMistake())).lstrip()


class Replaced(NamedTuple):
    """The line of a row that replaced the timer of an earlier row, and the line of that row."""

    line: int
    earlier_line: int


class EarlierRows:
    """The log offsets of the timers that the rows of a file have set, with the lines of the rows, and of the
    timers that they have replaced.

    The offsets of the timers set ascend, because the batches are sent one after the other and the broker
    stores their messages in order. A lower offset belongs to a repeated row, whose answer is that of its
    first attempt.
    """

    def __init__(self) -> None:
        self._offsets, self._lines = array("q"), array("q")
        self._replaced = set[int]()

    def replaced_by(self, line: int, offset: int, replaced_offset: int | None) -> int | None:
        """Add a row. Return the line of the earlier row whose timer it replaced, or None."""
        if self._offsets and offset <= self._offsets[-1]:
            return None
        self._offsets.append(offset)
        self._lines.append(line)
        if replaced_offset is None:
            return None
        place = bisect.bisect_left(self._offsets, replaced_offset)
        return self._lines[place] if self._offsets[place] == replaced_offset else None

    def is_newly_replaced(self, replaced_offset: str | None) -> bool:
        """Return whether a row replaced a timer, by its receipt, and no earlier row has the same receipt.

        Rows with the same idempotency key and the same fields set one timer, and have one receipt.
        """
        if replaced_offset is None or int(replaced_offset) in self._replaced:
            return False
        self._replaced.add(int(replaced_offset))
        return True


class BatchResult(NamedTuple):
    """The number of timers that a batch set, the number of pending timers replaced, and the refused rows.

    `past` contains the topics of the timers that were set and are due already, `created` the topics that the
    batch created, and `replaced_rows` the rows that replaced a timer of an earlier row.
    """

    sent: int
    replaced: int
    refused: list[Refused]
    past: list[str]
    created: list[dict[str, Any]]
    replaced_rows: list[Replaced]


@dataclass(slots=True)
class Result:
    """The results of all batches. `past` counts the timers that are due already, by topic.

    If `error` ended the command before the end of the file, `last_line` is the line of the last row that was
    sent or refused, or 0.
    """

    sent: int = 0
    replaced: int = 0
    refused: list[Refused] = field(default_factory=list)
    past: Counter[str] = field(default_factory=Counter)
    created: list[dict[str, Any]] = field(default_factory=list)
    replaced_rows: list[Replaced] = field(default_factory=list)
    last_line: int = 0
    error: TidewheelError | None = None

    def add(self, batch: list[Row], found: BatchResult) -> None:
        """Add the result of a batch."""
        self.sent += found.sent
        self.replaced += found.replaced
        self.refused += found.refused
        self.past.update(found.past)
        self.created += found.created
        self.replaced_rows += found.replaced_rows
        self.last_line = batch[-1].line

    def shape(self, held: Mapping[str, int], created: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the result in JSON form.

        `held` contains the numbers of due timers that are held, by topic. `created` contains the created
        topics, of which the first ones have a similar one if there is one.
        """
        return {
            "set": self.sent,
            "replaced": self.replaced,
            "past": self.past.total(),
            "held": sum(held.values()),
            "created_topics": created,
            "replaced_rows": [one._asdict() for one in self.replaced_rows],
            "refused": [one._asdict() for one in self.refused],
            "not_sent_after_line": None if self.error is None else self.last_line,
        }


def set_many(
    source: Annotated[
        str, typer.Option("--from", help="A CSV file with a header, a file of JSON lines, or - for stdin.")
    ] = "",
    topic: Annotated[str, typer.Option(help="The topic of rows without one.")] = "",
    format_: Annotated[
        Format | None, typer.Option("--format", help="Default: by the name of the file; stdin is jsonl.")
    ] = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set many delayed messages from a file. Each row is set or refused independently.

    Rows have the fields topic, body, in or at, timer_key, keys, tag, and the other fields of POST
    /api/messages.

    Example: tidewheel timer set --from reminders.csv --topic reminders
    """
    if not source:
        raise ConfigurationError("Name the file of the rows: --from FILE, or --from - for stdin.")
    api = broker_at(http)
    result = set_rows(api, rows_of(source, format_ or format_of(source), topic))
    if not as_json:  # The lookups may take long, and an interrupt would lose the result.
        show_result(result)
    held, created = held_of(api, result.past), created_shapes(api, result.created)
    if as_json:
        output.print_json(result.shape(held, created))
    else:
        show_topics(result, held, created)
    if result.error is not None:
        raise result.error
    if result.refused:
        raise typer.Exit(ClientMistake.exit_code)


def set_rows(api: Api, rows: Iterable[Row]) -> Result:
    """Set the rows of a file in batches, until the end of the file or an error, which is in the result."""
    result, earlier = Result(), EarlierRows()
    try:
        for batch in batches(rows):
            result.add(batch, set_batch(api, batch, earlier))
    except TidewheelError as error:
        result.error = error
    return result


def held_of(api: Api, past: Counter[str]) -> dict[str, int]:
    """Return the counts of the topics whose timers are held, without those that cannot be asked for."""
    held = dict[str, int]()
    with suppress(TidewheelError):  # If the broker is unreachable, the rows that were set are still reported.
        for topic, count in past.items():
            if is_held(api, topic):
                held[topic] = count
    return held


def show_result(result: Result) -> None:
    """Print the refused and the repeated rows, the summary, and the rows that were not sent."""
    for one in result.refused[:SHOWN_MAX]:
        output.say(f"line {one.line}: {one.sentence}")
    if len(result.refused) > SHOWN_MAX:
        output.say(f"and {len(result.refused) - SHOWN_MAX:,} more rows (--json lists all)")
    for line in replaced_lines(result.replaced_rows):
        output.say(line)
    if result.error is None or result.sent or result.refused:
        output.show(summary_of(result.sent, result.replaced, len(result.refused)))
        if result.error is not None:
            output.say(rest_of(result.last_line, result.error))


def show_topics(result: Result, held: dict[str, int], created: list[dict[str, Any]]) -> None:
    """Print the created topics, and the timers that are due already.

    `held` and `created` are those of `Result.shape`.
    """
    for line in created_lines(created):
        output.say(line)
    if at_once := result.past.total() - sum(held.values()):
        output.say(f"{timers_were(at_once)} due already: delivered at once")
    for topic, count in held.items():
        output.say(f"{timers_were(count)} due already: HELD until:  {shlex.join([*RELEASE, topic])}")


def replaced_lines(rows: Sequence[Replaced]) -> Iterator[str]:
    """Yield lines about rows that replaced a timer of an earlier row: the first ones, and their number."""
    for line, earlier_line in rows[:REPLACED_SHOWN_MAX]:
        yield f"line {line}: replaced the timer of line {earlier_line}"
    if len(rows) > REPLACED_SHOWN_MAX:
        yield f"and {len(rows) - REPLACED_SHOWN_MAX:,} more rows (--json lists all)"
    if rows:
        subject = f"{len(rows):,} {'row' if len(rows) == 1 else 'rows'}"
        yield f"{subject} replaced a timer of an earlier row: a timer key has one pending timer"


def rest_of(last_line: int, error: TidewheelError) -> str:
    """Return which rows were not sent, or may not have been set, because of an error."""
    again = "Within ten minutes, the same command sets no row twice."
    rows = f"the rows after line {last_line}" if last_line else "the rows"
    if isinstance(error, AnswerLate | BrokerUnreachable):
        return f"for {rows} there is no answer, so they may not be set. {again}"
    return f"{rows} were not sent. {again}"


def timers_were(count: int) -> str:
    """Return a number of timers as the subject of a sentence in the past tense."""
    return f"{count:,} {'timer was' if count == 1 else 'timers were'}"


def summary_of(sent: int, replaced: int, refused: int) -> str:
    """Return the numbers of timers that were set and of rows that were refused as a sentence."""
    timers = f"{timers_were(sent)} set"
    instead = f" ({replaced:,} in place of a pending timer)" if replaced else ""
    return f"{timers}{instead}, {refused:,} {'row was' if refused == 1 else 'rows were'} refused"


def format_of(source: str) -> Format:
    """Return the format of a file by its name."""
    return Format.CSV if source.lower().endswith(".csv") else Format.JSONL


def rows_of(source: str, format_: Format, topic: str) -> Iterator[Row]:
    """Yield the rows of a file or stdin. Raises `InputUnreadable` if it cannot be read."""
    try:
        with opened(source) as file:
            read, is_empty = csv_rows if format_ is Format.CSV else json_rows, True
            for row in read(file):
                is_empty = False
                yield checked(row, topic, format_)
            if is_empty:
                what = "a header and a row for each timer" if format_ is Format.CSV else "one object a line"
                raise InputUnreadable(f"{source} has no rows. Give {what}.")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputUnreadable(f"{source}: {reason}. Give rows in UTF-8, as CSV or JSON lines.") from error


@contextmanager
def opened(source: str) -> Iterator[TextIO]:
    """Open a file, or stdin for -."""
    if source == "-":
        yield sys.stdin
        return
    with Path(source).open(encoding="utf-8-sig", newline="") as file:
        yield file


def csv_rows(file: TextIO) -> Iterator[Row]:
    """Yield the rows of a CSV file with a header."""
    before = csv.field_size_limit(2 * limits.BODY_BYTES_MAX)
    try:
        yield from _csv_rows(file)
    finally:
        csv.field_size_limit(before)  # the limit applies to all readers of the process


def _csv_rows(file: TextIO) -> Iterator[Row]:
    reader, names = csv.reader(file, strict=True), list[str]()
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            is_one_line = reader.line_num == line
            problem = _quote_problem(str(error), is_one_line)
            if not problem:
                raise
            if not names:
                raise InputUnreadable(f"line {line}: {problem}") from error
            yield Row(line, {}, problem)
            if problem == _UNCLOSED:  # the lines of the other rows are within the quote
                return
            continue
        if cells and names:
            yield _csv_row(line, names, cells)
        elif cells:
            names = cells
            check_header(names)


def _quote_problem(error: str, is_one_line: bool) -> str:
    """Return the reason for a CSV error if a quote caused it, or an empty string."""
    is_behind_quote = "expected after" in error
    if is_behind_quote and is_one_line:
        return 'A cell continues after its closing quote. Write "" for a quote in a quoted cell.'
    is_too_large = "field larger" in error and not is_one_line
    return _UNCLOSED if is_behind_quote or is_too_large or "unexpected end" in error else ""


def _csv_row(line: int, names: Sequence[str], cells: Sequence[str]) -> Row:
    """Return a row of a CSV file, with a problem if it does not match the header."""
    if len(cells) != len(names):
        return Row(
            line,
            {},
            f"The row has {len(cells)} cells and the header has {len(names)}: give a cell for each column, "
            "which may be empty, and quote a cell that contains a comma or a line break.",
        )
    given = {name: value for name, value in zip(names, cells, strict=True) if value}
    if "" in given:
        return Row(line, {}, "A cell is in a column without a name: name the column in the header.")
    named = {
        name.removeprefix(_PROPERTY): given.pop(name)
        for name in names
        if name.startswith(_PROPERTY) and name in given
    }
    if not given and not named:
        return Row(line, {}, "All cells of the row are empty.")
    try:
        row = {name: _csv_value(name, value) for name, value in given.items()}
    except ValueError as error:
        return Row(line, {}, str(error))
    properties = row.get("properties", {})
    if twice := properties.keys() & named.keys():
        return Row(line, {}, f"The property {min(twice)[:80]!r} is given twice: give it in one column.")
    return Row(line, row | ({"properties": properties | named} if properties or named else {}))


def check_header(names: Sequence[str]) -> None:
    """Raise `InputUnreadable` if the columns are not separated by commas, or one is unknown or repeated."""
    if len(names) == 1 and (found := [one for one in _SEPARATORS if one in names[0]]):
        raise InputUnreadable(
            f"The columns are separated by {_SEPARATORS[found[0]]}: separate them by commas, as CSV does. "
            f"The header is {names[0][:80]!r}."
        )
    if unknown := [one for one in names if one and one not in COLUMNS and not one.startswith(_PROPERTY)]:
        raise InputUnreadable(
            f"The header has the unknown column {unknown[0][:80]!r}. The columns are {', '.join(COLUMNS)} "
            "and properties.NAME."
        )
    if repeated := sorted(name for name, count in Counter(names).items() if name and count > 1):
        raise InputUnreadable(
            f"The header has the column {repeated[0][:80]!r} twice: give each column once. Several keys are "
            "one column, keys, with blanks between them."
        )


def _csv_value(name: str, value: str) -> Any:
    """Return the value of a cell. Raises `ValueError` with a sentence for invalid keys or properties."""
    if name == "keys":
        return _keys(value)
    if name == "properties":
        properties = _json_or_none(value)
        if not isinstance(properties, dict):
            raise ValueError(
                'properties is no JSON object: give {"NAME": "VALUE"}, or use a column properties.NAME '
                "for each property."
            )
        return properties
    if name == "unique":
        return value.strip().lower() in ("true", "1", "yes")
    return int(value) if name in _NUMBERS and value.strip().isdigit() else value


def _keys(value: str) -> list[str]:
    """Return the keys of a cell, which are separated by blanks or commas, or are a JSON list."""
    if not value.lstrip().startswith("["):
        return value.replace(",", " ").split()
    keys = _json_or_none(value)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError(
            'keys is no JSON list of texts: give ["KEY", "KEY"], or keys with blanks between them.'
        )
    return keys


def _json_or_none(value: str) -> Any:
    """Return the JSON value of a cell, or None if the cell is no JSON."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def json_rows(file: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines. Blank lines are skipped."""
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            given = json.loads(text)
        except ValueError as error:
            yield Row(line, {}, f"The line is no JSON: {error}.")
            continue
        is_object = isinstance(given, dict)
        yield Row(line, given if is_object else {}, "" if is_object else "The line is no JSON object.")


def checked(row: Row, topic: str, format_: Format) -> Row:
    """Return a row with its topic and idempotency key, or with a problem."""
    if row.problem:
        return row
    fields = ({"topic": topic} if topic else {}) | row.fields
    if fields.get("topic") in (None, ""):
        how = "fill the column" if format_ is Format.CSV else "add the field"
        return row._replace(problem=f"topic is missing: {how}, or give --topic.")
    if not any(fields.get(name) is not None for name in TIMES):
        return row._replace(problem=f"The row has no time: give one of {', '.join(TIMES)}.")
    if fields.get("timer_key") == "":  # as in the answers of lists, and as an empty cell of CSV
        del fields["timer_key"]
    if "idempotency_key" not in fields and not fields.get("timer_key"):
        content = json.dumps([row.line, fields], sort_keys=True).encode()
        fields["idempotency_key"] = sha256(content).hexdigest()[:32].upper()
    return row._replace(fields=fields)


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield lists of rows that fit into one request. The rows before an `InputUnreadable` are yielded."""
    batch, batch_bytes, unread = list[Row](), 0, None
    rows = iter(rows)
    while True:
        try:
            row, row_bytes = fitted(next(rows))
        except StopIteration:
            break
        except InputUnreadable as error:
            unread = error
            break
        if batch and (len(batch) == BATCH_ROWS or batch_bytes + row_bytes > BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(row)
        batch_bytes += row_bytes
    if batch:
        yield batch
    if unread is not None:
        raise unread


def fitted(row: Row) -> tuple[Row, int]:
    """Return a row that fits into one request, or that has a problem, and its size as JSON."""
    row_bytes = len(json.dumps(row.fields))
    if row_bytes > ROW_BYTES_MAX:
        row = row._replace(fields=with_base64(row.fields))
        row_bytes = len(json.dumps(row.fields))
    if row_bytes <= ROW_BYTES_MAX:
        return row, row_bytes
    problem = f"The row has {row_bytes:,} bytes as JSON, the limit is {ROW_BYTES_MAX:,}: give a smaller body."
    return Row(row.line, {}, row.problem or problem), 0


def with_base64(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message with its body in base64, if it is a text and no other body is given."""
    body = fields.get("body")
    if not isinstance(body, str) or not fields.keys().isdisjoint(("body_base64", "body_json")):
        return fields
    try:
        encoded = b64encode(body.encode()).decode()
    except UnicodeEncodeError:  # a lone surrogate, for which the row is refused in any case
        return fields
    return {name: value for name, value in fields.items() if name != "body"} | {"body_base64": encoded}


def set_batch(api: Api, batch: list[Row], earlier: EarlierRows) -> BatchResult:
    """Set the rows of a batch, and add them to `earlier`.

    In the result, the refused rows are sorted by line.
    """
    refused = [Refused(row.line, ClientMistake.code, row.problem) for row in batch if row.problem]
    left, replaced, past = [row for row in batch if not row.problem], 0, list[str]()
    created, replaced_rows = list[dict[str, Any]](), list[Replaced]()
    while left:
        try:
            answers = api.post("messages", body={"messages": [row.fields for row in left]})["messages"]
        except ClientMistake as error:
            found = _ROW_OF.search(str(error))
            if found is None or int(found[1]) >= len(left):
                raise
            message = _ROW_OF.sub("" if found[2] else "The row", str(error), count=1)
            refused.append(Refused(left.pop(int(found[1])).line, error.code, message))
            continue
        for row, answer in zip(left, answers, strict=True):
            if "code" in answer:
                refused.append(Refused(row.line, answer["code"], answer["message"]))
                continue
            replaced += earlier.is_newly_replaced(answer.get("replaced_offset"))
            if new := answer.get("created_topic"):
                created.append(new)
            if row.fields.get("timer_key") and (line := replaced_line(earlier, row.line, answer)):
                replaced_rows.append(Replaced(row.line, line))
            if is_past(answer):
                past.append(row.fields["topic"])
        break
    return BatchResult(len(batch) - len(refused), replaced, sorted(refused), past, created, replaced_rows)


def replaced_line(earlier: EarlierRows, line: int, answer: Mapping[str, Any]) -> int | None:
    """Return the line of the earlier row whose timer a row replaced, by the receipt of the row, or None."""
    replaced = answer.get("replaced_offset")
    return earlier.replaced_by(
        line, int(answer["physical_offset"]), None if replaced is None else int(replaced)
    )


def is_past(answer: dict[str, Any]) -> bool:
    """Return whether the timer of a receipt is due already."""
    handle: str = answer["recall_handle"]
    return bool(handle) and recall.decode(handle).due_ms <= now_ms()
