"""Classification of database errors by SQLSTATE (PostgreSQL), error number (MySQL), or message (SQLite).

Two errors are part of normal operation. In a deadlock, the database rolls one transaction back; in
PostgreSQL, a conflict at REPEATABLE READ or SERIALIZABLE has the same effect. A lock timeout occurs when a
lock is not granted in time. In both cases the transaction has had no effect and can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError


@dataclass(frozen=True)
class Sign:
    """Codes of one kind of error in each database."""

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
    """Return whether a driver error has one of the given kinds."""
    state, words = getattr(error.orig, "sqlstate", None), str(error.orig)
    number = next(iter(getattr(error.orig, "args", ())), None)
    return any(
        state in sign.sqlstates or number in sign.numbers or any(one in words for one in sign.words)
        for sign in signs
    )


def told_to_repeat(error: DBAPIError) -> None:
    """Add an explanation to a deadlock or lock-timeout error."""
    if says(error, ROLLED_BACK):
        error.add_detail(
            "The database rolled the transaction back in favour of another. Nothing of it is done: repeat it."
        )
    elif says(error, LOCK_TIMED_OUT):
        error.add_detail(
            "Another transaction holds a lock for longer than this one waits. Nothing of it is done when it "
            "is rolled back: repeat it."
        )
