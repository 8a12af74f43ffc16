"""Damage found by any reader since the start: one list for log, metric, /readyz and views.

    start, background check, rescue ---------+
    Store.read, .read_appended, .read_entry -+--> places (bounded, once each) --> listeners (the shell)
    Store.offsets_named, TimerEnds,          |
    Timers.read_row, queue files, gaps ------+

1. Damage is noted where bytes are read, not where an error is caught: callers may catch `StoreDamaged`, or
   skip the record, without losing the report. So no other module in `services/broker` reads the log, an index
   or a partition (tests/unit/services/broker/spine/test_damage.py proves it from the source).
2. A place (part and path; in the log, the record's offset) counts once. The result of a rescue replaces the
   entry of the damaged file, and is reported again (`settle`).
3. A gap of a queue counts unless known damage of the log, after the entry before the gap, explains it: a
   later start reads the log only from its snapshot on, and a group skips the lost message. At the beginning
   of a queue any known damage before the gap may explain it. A search by tags stops at a gap, since the lost
   message may have had any tag, and a group skips it in one place, which notes it (`Groups.pass_over_gap`).
4. At most DAMAGE_KEPT_MAX places are kept, and one more entry for the overflow; from then on only
   `unreadable_records` counts.

A listener gets all known entries, then each new entry in the call that finds it. Cost: none while nothing is
damaged. Weak spot: damage read by worker threads (checkpoints, checks, `explain`) is noted when the loop
receives their result.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from commitlog import layout, limits
from commitlog.errors import StoreDamaged
from commitlog.log import CommitLog
from commitlog.recovery import Damage
from services.broker.spine.values import Damaged
from timingwheel.partition import Gap

Listener = Callable[[Damaged], None]

_FULL: Final = Damaged(
    "log",
    "",
    f"more than {limits.DAMAGE_KEPT_MAX} places are damaged; further ones are only counted, by "
    "mq_unreadable_records_total. Stop the broker and run: tidewheel store verify.",
)


class FoundDamage:
    """The damaged places of a store, oldest first."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._places: dict[Hashable, Damaged] = {}
        self._listeners: list[Listener] = []
        self._known_ends = list[int]()
        """The end offsets of known damage of the log, ascending."""
        self.unreadable_records = 0
        """The number of reads of damaged records."""

    def __iter__(self) -> Iterator[Damaged]:
        return iter(self._places.values())

    def __len__(self) -> int:
        return len(self._places)

    def listen(self, listener: Listener) -> None:
        """Call `listener` for each existing entry, and for each new one."""
        for found in self:
            listener(found)
        self._listeners.append(listener)

    def note(self, found: Damaged, place: Hashable = None) -> None:
        """Add and report damage of a place that is not known yet; the default place is `found` itself."""
        place = place or found
        if place not in self._places:
            self._put(place, found)

    def settle(self, found: Damaged) -> None:
        """Replace and report the entry of a damaged file after its rescue."""
        self._put((found.part, found.path), found)

    def record(self, physical_offset: int, error: StoreDamaged) -> None:
        """Note that the record at a log offset is unreadable, unless retention has deleted it."""
        log = self._log
        if physical_offset in log.keep:
            part, path = "keep", log.keep.file_of(physical_offset)
        elif physical_offset >= log.first_offset:
            part, path = "log", self.segment_path(physical_offset)
        else:
            return
        self.unreadable_records += 1
        self.note(Damaged(part, path, error.detail), (part, physical_offset))

    def log_range(self, one: Damage) -> None:
        """Note damaged bytes of the log."""
        what = f"the log is damaged from {one.first_offset} to {one.end_offset}; what lay there is lost."
        found = Damaged("log", self.segment_path(one.first_offset), what)
        self.note(found, ("log", one.first_offset))
        at = bisect_left(self._known_ends, one.end_offset)
        if self._known_ends[at : at + 1] != [one.end_offset]:
            self._known_ends.insert(at, one.end_offset)

    def is_told(self, behind: int, until: int) -> bool:
        """Return whether known damage of the log ends after `behind` and at or before `until`."""
        return bisect_right(self._known_ends, behind) < bisect_right(self._known_ends, until)

    def gap_in_queue(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> None:
        """Note a gap in a queue that damage of the log before a log offset has left."""
        if physical_offset <= self._log.first_offset:
            return
        what = (
            f"queue {queue_id} of topic {topic} has a gap at offset {queue_offset}: the message was lost by "
            f"damage of the log before {physical_offset}."
        )
        found = Damaged("gap", self.segment_path(physical_offset - 1), what)
        self.note(found, ("gap", topic, queue_id, physical_offset))

    def file(self, part: str, path: str, what: str) -> None:
        """Note that a file is damaged, once for all its bytes."""
        self.note(Damaged(part, path, what), (part, path))

    def gap(self, gap: Gap) -> None:
        """Note damaged bytes of a timer file; the rescue reports its result with `settle`."""
        self.file("partition", gap.path, str(gap))

    def segment_path(self, offset: int) -> str:
        """Return the path of the segment that contains a log offset."""
        return layout.segment_path(self._log.segment_of(offset))

    def _put(self, place: Hashable, found: Damaged) -> None:
        if place not in self._places and len(self._places) >= limits.DAMAGE_KEPT_MAX:
            place = found = _FULL
        if self._places.get(place) != found:
            self._places[place] = found
            for listener in self._listeners:
                listener(found)
