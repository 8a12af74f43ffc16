"""How commands print: data to stdout (a table for people, JSON for programs), talk to stderr.

64-bit numbers go out as strings in JSON that a browser may read; the HTTP interface does that,
and the commands print what they were given.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def print_json(value: Any) -> None:
    """Print one JSON document to stdout, indented."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print one JSON document as one line to stdout, at once (for streams)."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Iterable[object]], whole: Sequence[str] = ()) -> None:
    """Print rows under their columns to stdout; text is never read as markup.

    The cells of `whole` columns are not folded as long as others can give way: ids are to be copied.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    for row in rows:
        table.add_row(*(str(cell) for cell in row), style=None)
    Console(markup=False, highlight=False).print(table)


def say(sentence: str) -> None:
    """Tell the person at the keyboard something; stderr, so that pipes stay clean."""
    print(sentence, file=sys.stderr, flush=True)
