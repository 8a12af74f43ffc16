"""Output of the commands: data to stdout (tables or JSON), and messages to stderr.

In JSON, the HTTP interface encodes 64-bit numbers as strings, and the commands print them unchanged.

All command output uses these functions. On a terminal, and in each table, nonprintable characters are escaped
(`tidewheel.printable`), because bodies, keys, properties, client ids and errors may come from untrusted
sources and could move the cursor or forge a line. JSON is not escaped further.

Cells of a table are never truncated, except lists of names (`some`). On a narrow terminal, only text columns
are wrapped. If stdout is not a terminal, a row is always one line.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import unicodedata
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, TextIO

from services.process.errors import StdoutFailed
from tidewheel.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

GAP: Final = "  "
NAMES_SHOWN_MAX: Final = 3
"""Maximum number of names in a list, because a group may have hundreds of topics. --json prints all names."""
PROSE_WIDTH_MIN: Final = 24
"""Minimum width of a wrapped text column."""


def print_json(value: Any) -> None:
    """Print one JSON document to stdout, indented."""
    print(as_json(value, indent=2))


def print_json_line(value: Any) -> None:
    """Print one JSON document as one line to stdout and flush it (for streams)."""
    print(as_json(value), flush=True)


def as_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON without escaping text, except unpaired surrogates, which cannot be encoded."""
    return json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="backslashreplace").decode()


def show(*lines: str) -> None:
    """Print lines to stdout and flush it."""
    print("\n".join(shown(line, sys.stdout) for line in lines), flush=True)


def shown(line: str, stream: TextIO) -> str:
    """Return a line as written to a stream. On a terminal, control characters are escaped."""
    return one_line(line) if stream.isatty() else line


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[object]], prose: Collection[str] = ()
) -> None:
    """Print a table to stdout. On a narrow terminal, cells of the `prose` columns are wrapped."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    heading, *body = table_lines(columns, rows, prose, width)
    is_bold = is_terminal and not os.environ.get("NO_COLOR")
    print("\n".join([f"\033[1m{heading}\033[0m" if is_bold else heading, *body]))


def table_lines(
    columns: Sequence[str],
    rows: Iterable[Iterable[object]],
    prose: Collection[str] = (),
    width: int | None = None,
) -> Iterator[str]:
    """Yield the lines of a table, beginning with the heading.

    `width` is the width at which text columns are wrapped.
    """
    assert set(prose) <= set(columns), "prose in no column"
    cells = [tuple(columns), *(tuple(cell_text(cell) for cell in row) for row in rows)]
    widths = [max(map(text_width, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        is_prose = [column in prose for column in columns]
        widths = folded(widths, is_prose, width - len(GAP) * (len(columns) - 1))
    for row in cells:
        parts = [
            textwrap.wrap(cell, size, break_long_words=False, break_on_hyphens=False)
            if text_width(cell) > size
            else [cell]
            for cell, size in zip(row, widths, strict=True)
        ]
        for line in zip_longest(*parts, fillvalue=""):
            padded = (cell + " " * (size - text_width(cell)) for cell, size in zip(line, widths, strict=True))
            yield GAP.join(padded).rstrip()


def folded(widths: Sequence[int], is_prose: Sequence[bool], room: int) -> list[int]:
    """Return the column widths. Text columns share the remaining width, as far as they need it."""
    left = room - sum(size for size, folds in zip(widths, is_prose, strict=True) if not folds)
    shares = list(widths)
    open_columns = sorted((at for at, folds in enumerate(is_prose) if folds), key=lambda at: widths[at])
    for already, at in enumerate(open_columns):
        fair = max(PROSE_WIDTH_MIN, left // (len(open_columns) - already))
        shares[at] = min(widths[at], fair)
        left -= shares[at]
    return shares


def some(names: Sequence[str]) -> str:
    """Return names as one text. A long list is truncated, with the number of omitted names."""
    if len(names) <= NAMES_SHOWN_MAX:
        return " ".join(names)
    shown = names[: NAMES_SHOWN_MAX - 1]
    return f"{' '.join(shown)} and {len(names) - len(shown):,} more"


def cell_text(cell: object) -> str:
    """Return a cell as one line of text, with nonprintable characters escaped."""
    return one_line(str(cell))


def text_width(text: str) -> int:
    """Return the width of a text in terminal columns.

    East Asian wide characters take two columns, and combining marks none.
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def offer(text: str) -> None:
    """Print text to stdout. If stdout cannot be written, print a message to stderr and continue."""
    try:
        print(text, flush=True)
    except (BrokenPipeError, StdoutFailed):
        say("stdout cannot be written: what it was to show is lost, and this goes on.")


def say(sentence: str) -> None:
    """Print a message to stderr, so that stdout contains only data."""
    print(shown(sentence, sys.stderr), file=sys.stderr, flush=True)


def say_undone(count: int = 1, ending: str = "do it", flags: str = "--yes") -> None:
    """Print that a preview has changed nothing, and how the change is made if there are items to change."""
    say(f"nothing was done: add {flags} to {ending}" if count else "nothing matches: nothing to do")
