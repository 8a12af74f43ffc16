"""How commands print: data to stdout (a table for people, JSON for programs), talk to stderr.

64-bit numbers go out as strings in JSON that a browser may read; the HTTP interface does that,
and the commands print what they were given.

Everything that commands print goes through here. What is printed for people is lines: on a terminal, what is
not printable in a line is written out (`tidewheel.printable`), since bodies, keys, properties, client
ids and errors are a stranger's, and could move the cursor or forge a line. JSON is as it is.

A table is for reading and for copying from: a cell is never cut, but for lists of names (`some`), and only
columns of prose are folded, on a terminal that is too narrow. Anywhere else (a pipe, a file) a row is one
line, whatever its length.
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
"""Of a list of names in a line: a group may have hundreds of topics. --json prints all."""
PROSE_WIDTH_MIN: Final = 24
"""A column of prose is not folded to less than this: a word a line is harder to read than a wrapped row."""


def print_json(value: Any) -> None:
    """Print one JSON document to stdout, indented."""
    print(as_json(value, indent=2))


def print_json_line(value: Any) -> None:
    """Print one JSON document as one line to stdout, at once (for streams)."""
    print(as_json(value), flush=True)


def as_json(value: Any, indent: int | None = None) -> str:
    """Return JSON with texts as they are; half a surrogate pair, which no encoding has, is escaped."""
    return json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="backslashreplace").decode()


def show(*lines: str) -> None:
    """Print lines to stdout, at once."""
    print("\n".join(shown(line, sys.stdout) for line in lines), flush=True)


def shown(line: str, stream: TextIO) -> str:
    """Return a line as a stream gets it: on a terminal without what would move its cursor."""
    return one_line(line) if stream.isatty() else line


def print_table(
    columns: Sequence[str], rows: Iterable[Iterable[object]], prose: Collection[str] = ()
) -> None:
    """Print rows under their columns to stdout; on a narrow terminal the cells of `prose` columns fold."""
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
    """Yield the lines of a table, the heading first; `width` is what the prose is folded for."""
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
    """Return the widths of columns; those of prose share what the others leave, as far as they need it."""
    left = room - sum(size for size, folds in zip(widths, is_prose, strict=True) if not folds)
    shares = list(widths)
    open_columns = sorted((at for at, folds in enumerate(is_prose) if folds), key=lambda at: widths[at])
    for already, at in enumerate(open_columns):
        fair = max(PROSE_WIDTH_MIN, left // (len(open_columns) - already))
        shares[at] = min(widths[at], fair)
        left -= shares[at]
    return shares


def some(names: Sequence[str]) -> str:
    """Return names as one text: all if they are few, else the first of them and how many more there are."""
    if len(names) <= NAMES_SHOWN_MAX:
        return " ".join(names)
    shown = names[: NAMES_SHOWN_MAX - 1]
    return f"{' '.join(shown)} and {len(names) - len(shown):,} more"


def cell_text(cell: object) -> str:
    """Return a cell as text of one line, without what would move the cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in str(cell))


def text_width(text: str) -> int:
    """Return how many columns of a terminal text takes: letters of East Asia take two, marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def offer(text: str) -> None:
    """Print text to stdout; a process that outlives it says on stderr that it cannot be written."""
    try:
        print(text, flush=True)
    except (BrokenPipeError, StdoutFailed):
        say("stdout cannot be written: what it was to show is lost, and this goes on.")


def say(sentence: str) -> None:
    """Tell the person at the keyboard something; stderr, so that pipes stay clean."""
    print(shown(sentence, sys.stderr), file=sys.stderr, flush=True)


def say_undone(count: int = 1, ending: str = "do it") -> None:
    """Print that a preview has changed nothing, and how the change is made if there are items to change."""
    say(f"nothing was done: add --yes to {ending}" if count else "nothing matches: nothing to do")
