"""Where a stream is in which log, and whether the store still holds what comes after.

    {"offset": 4096, "log": {"at": 3904, "bytes": 192, "crc": 1234, "store_ms": 1763700000000}}

`offset` is a log offset: all records that start before it were read. `log` is a record by which that log is
known again (`log/marks.py`). `began`, in the first offset after a loss, is where reading began anew in the
log that was there then. Checkpoints of before have `offset` alone: of these only the length of the log is
checked. Nothing can be lost at offset 0.

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


@dataclass(frozen=True, slots=True)
class Position:
    """See the module."""

    offset: int
    mark: Mark | None = None
    began: int | None = None

    @classmethod
    def in_log(cls, log: StoreLog, offset: int) -> Position:
        """Return the position at a log offset of this log."""
        return cls(offset, mark_at(log, offset))

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Position:
        """Return what a checkpoint holds."""
        mark = Mark.from_json(stored["log"]) if "log" in stored else None
        return cls(stored["offset"], mark, stored.get("began"))

    def as_json(self) -> dict[str, Any]:
        """Return what a checkpoint is to hold."""
        log = {} if self.mark is None else {"log": self.mark.as_json()}
        began = {} if self.began is None else {"began": self.began}
        return {"offset": self.offset, **log, **began}

    def begun_at(self, offset: int) -> Position:
        """Return this position as the end of a batch that does not begin where the one before ended."""
        return replace(self, began=offset)


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
    if offset == 0:
        return None
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
