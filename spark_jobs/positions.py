"""Where a stream is in which log, and whether the store still holds what comes after.

    {"offset": 4096, "log": {"at": 3904, "bytes": 192, "crc": 1234, "store_ms": 1763700000000}}

`offset` is a log offset: all records that start before it were read. `log` is a record by which that log is
known again (`log/marks.py`). `since_ms` is the time from which on records are wanted, `since_offset` the log
offset, where the log had not got that far: both as the query was first given them. `began` is where the batch
that ends here begins, if it is the first of a query (Spark asks anew where a query begins until that batch is
committed) or the first behind a loss. `log` lacks while there is no log: then only its length is checked.

    the files hold                          the stream
    the marked record                       goes on; waits where the store tells of less than it did
    other bytes there                       has lost: it is another log
    nothing there, and end before it        has lost: the log ends before the offset
    nothing before an offset behind it      has lost: retention has deleted what lies between
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from commitlog.published_log import StoreLog, read_durable
from commitlog.recovery import Damage
from spark_jobs.log.marks import Mark, first_kept, is_kept, mark_at
from spark_jobs.log.ranges import FOREVER_MS, Place, found_at


@dataclass(frozen=True, slots=True)
class Position:
    """See the module."""

    offset: int
    mark: Mark | None = None
    since_ms: int | None = None
    since_offset: int | None = None
    began: int | None = None

    @classmethod
    def first_of(cls, log: StoreLog | None, since: Place | None) -> Position:
        """Return where a query begins in a log, None while there is none; raise `UnknownChoice`.

        What comes later begins at a place behind the log's end.
        """
        since_ms, since_offset = (None, None) if since is None else (since.ms, since.offset)
        if log is None:
            return cls(0, None, since_ms, since_offset, began=0)
        found = log.first_offset if since is None else found_at(log, since, is_end=False)
        offset = min(max(found, log.first_offset), log.end_offset)
        is_ahead = since_offset is not None and since_offset > offset
        return cls(offset, mark_at(log, offset), since_ms, since_offset if is_ahead else None, began=offset)

    @classmethod
    def at_end_of(cls, log: StoreLog) -> Position:
        """Return the position behind all records of a log."""
        return cls(log.end_offset, mark_at(log, log.end_offset))

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Position:
        """Return what a checkpoint holds."""
        mark = Mark.from_json(stored["log"]) if "log" in stored else None
        numbers = (stored.get(name) for name in ("since_ms", "since_offset", "began"))
        return cls(stored["offset"], mark, *numbers)

    def as_json(self) -> dict[str, Any]:
        """Return what a checkpoint is to hold."""
        log = None if self.mark is None else self.mark.as_json()
        rest = {"log": log, "since_ms": self.since_ms, "since_offset": self.since_offset, "began": self.began}
        return {"offset": self.offset, **{name: one for name, one in rest.items() if one is not None}}

    def advanced(self, log: StoreLog | None, offset: int) -> Position:
        """Return the position that begins where this one does, and is at a log offset of this log."""
        mark = None if log is None else mark_at(log, offset)
        return replace(self, offset=offset, mark=mark, began=None)

    @property
    def is_first(self) -> bool:
        """Whether nothing was read up to here: a query begins, or has begun anew."""
        return self.began == self.offset

    @property
    def first_offset(self) -> int:
        """The log offset from which on records are wanted."""
        return max(self.offset, self.since_offset or 0)

    @property
    def stored_ms(self) -> tuple[int, int] | None:
        """The store times that are wanted, from the first to before the second; None for all."""
        return None if self.since_ms is None else (self.since_ms, FOREVER_MS)


@dataclass(frozen=True, slots=True)
class Loss:
    """What a stream can no longer read: log offsets of the log it was in (none, if how many is not known).

    `is_other_log`: what is there now has to be read from its beginning; else behind `gone`.
    """

    gone: Damage
    why: str
    is_other_log: bool


def loss_at(store: Path, position: Position) -> Loss | None:
    """Return what is lost to a stream at this position; None if it can go on, or has to wait."""
    offset, mark = position.offset, position.mark
    end_offset, first_offset = read_durable(store) or 0, first_kept(store) or 0
    kept = None if mark is None else is_kept(store, mark)
    if kept:
        return None
    if offset > end_offset:
        why = f"{store}: its log ends at {end_offset}, and the stream has read up to {offset}{_known(mark)}."
        return Loss(Damage(offset, offset), why, is_other_log=True)
    if first_offset > offset:
        why = (
            f"{store}: its log begins at {first_offset}, and the stream has read up to {offset}; what lies "
            "between was deleted."
        )
        return Loss(Damage(offset, first_offset), why, is_other_log=False)
    if kept is None:
        return None
    why = (
        f"{store} has another log than the one that was read up to {offset}{_known(mark)}; it goes from "
        f"{first_offset} to {end_offset}, without that record."
    )
    return Loss(Damage(offset, offset), why, is_other_log=True)


def _known(mark: Mark | None) -> str:
    if mark is None:
        return ""
    stored = datetime.fromtimestamp(mark.store_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f" (known by the record at {mark.at}, stored {stored.replace('+00:00', 'Z')})"
