"""What databases say in errors, by their own numbers: PostgreSQL's SQLSTATE, MySQL's number, SQLite's words.

Two of them are everyday errors: of transactions that wait for each other in a circle the database rolls one
back (a deadlock; with REPEATABLE READ or SERIALIZABLE in PostgreSQL also a conflict), and a lock may not come
in time. Nothing of the transaction is done then, and it can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError


@dataclass(frozen=True)
class Sign:
    """How each database says one thing."""

    sqlstates: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    words: tuple[str, ...] = ()


LACKING_TABLE = Sign(("42P01",), (1146,), ("no such table",))
LACKING_COLUMN = Sign(("42703",), (1054,), ("has no column named", "no such column"))
DUPLICATE_KEY = Sign(numbers=(1062,))
ROLLED_BACK = Sign(("40001", "40P01"), (1213, 1020))
LOCK_TIMED_OUT = Sign(("55P03",), (1205,), ("database is locked",))
SAVEPOINT_GONE = Sign(("3B001",), (1305,), ("no such savepoint",))
TRANSACTION_FAILED = Sign(("25P02",))


def says(error: DBAPIError, *signs: Sign) -> bool:
    """Return whether an error of the driver is one of these."""
    state, words = getattr(error.orig, "sqlstate", None), str(error.orig)
    number = next(iter(getattr(error.orig, "args", ())), None)
    return any(
        state in sign.sqlstates or number in sign.numbers or any(one in words for one in sign.words)
        for sign in signs
    )


def told_to_repeat(error: DBAPIError) -> None:
    """Add to an everyday error what it means, in the driver's own words' company."""
    if says(error, ROLLED_BACK):
        error.add_detail(
            "The database rolled the transaction back in favour of another. Nothing of it is done: repeat it."
        )
    elif says(error, LOCK_TIMED_OUT):
        error.add_detail(
            "Another transaction holds a lock for longer than this one waits. Nothing of it is done when it "
            "is rolled back: repeat it."
        )
