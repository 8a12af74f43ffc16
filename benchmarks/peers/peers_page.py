"""The position of a table in a page: between two comments with its name; the rest of the page is kept."""

from __future__ import annotations

from pathlib import Path


class BadPage(Exception):
    """The page has no markers for the table; the text contains the remedy."""


def marks(name: str) -> tuple[str, str]:
    """Return the lines before and after the table of this name."""
    return f"<!-- benchmarks/{name}: begins -->", f"<!-- benchmarks/{name}: ends -->"


def written(page: Path, name: str, new: str) -> None:
    """Replace a table between its markers in a page; raise `BadPage` if the markers are missing."""
    begins, ends = marks(name)
    text = page.read_text() if page.exists() else ""
    head, found_begin, rest = text.partition(begins)
    _, found_end, tail = rest.partition(ends)
    if not found_begin or not found_end:
        raise BadPage(f"{page} has no place for the table. Put these two lines into it:\n{begins}\n{ends}")
    page.write_text(f"{head}{begins}\n{new}\n{ends}{tail}")
