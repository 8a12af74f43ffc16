"""The list of damage found by any reader since startup, for the log, the metric, /readyz, and the views.

    startup, background check, repair -------+
    Store.read, .read_appended, .read_entry -+--> places (bounded, once each) --> listeners (the shell)
    Store.offsets_named, TimerEnds,          |
    Timers.read_row, queue files, gaps ------+

1. Damage is reported where bytes are read, not where an error is caught, so a caller may catch `StoreDamaged`
   or skip a record without losing the report. Within `services/broker`, only the functions in the drawing
   read the log, an index, or a partition. The test tests/unit/services/broker/spine/test_damage.py verifies
   this rule by reading the source.
2. Each damaged place is counted once: a file by its part and path, and a record of the log by its offset. The
   result of a repair replaces the entry of the damaged file and is reported again (`report_repair`).
3. A gap in a queue is reported unless it is explained by known damage to the log that follows the entry
   before the gap. Without the report the loss would go unnoticed, because a later recovery reads the log only
   from its snapshot on, and a group skips the lost message. At the beginning of a queue, any known damage
   before the gap counts as the explanation. A search by tags stops at a gap, because the lost message may
   have had any tag. A group skips a gap only in `Groups.skip_gap`, which reports the gap.
4. The list of damage contains at most DAMAGE_KEPT_MAX places and one entry for the overflow. Further
   unreadable records only increment `unreadable_records`.

A listener receives all known entries first, and then each new entry during the call that finds the damage.
The list of damage has no cost while the store has no damage. Weak spot: damage found by worker threads
(checkpoints, background checks, and `explain`) is reported only when the event loop receives the result of
the worker.
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


class DamageList:
    """The damaged places of a store, in the order of their discovery."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._places: dict[Hashable, Damaged] = {}
        self._listeners: list[Listener] = []
        self._known_ends = list[int]()
        """The end offsets of known damage to the log, in ascending order."""
        self.unreadable_records = 0
        """The number of reads that have found a damaged record."""

    def __iter__(self) -> Iterator[Damaged]:
        return iter(self._places.values())

    def __len__(self) -> int:
        return len(self._places)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` for each damaged place that is known, and for each place found later."""
        for found in self:
            listener(found)
        self._listeners.append(listener)

    def report(self, found: Damaged, place: Hashable = None) -> None:
        """Report damage unless its place is already known. The default of `place` is `found` itself."""
        place = place or found
        if place not in self._places:
            self._put(place, found)

    def report_repair(self, found: Damaged) -> None:
        """Replace the entry of a damaged file with the result of the repair, and report the result."""
        self._put((found.part, found.path), found)

    def report_record(self, physical_offset: int, error: StoreDamaged) -> None:
        """Report the unreadable record at a log offset, unless retention has deleted the record."""
        log = self._log
        if physical_offset in log.keep:
            part, path = "keep", log.keep.file_of(physical_offset)
        elif physical_offset >= log.first_offset:
            part, path = "log", self.segment_path(physical_offset)
        else:
            return
        self.unreadable_records += 1
        self.report(Damaged(part, path, error.detail), (part, physical_offset))

    def report_log_range(self, one: Damage) -> None:
        """Report a damaged range of the log."""
        what = f"the log is damaged from {one.first_offset} to {one.end_offset}; what lay there is lost."
        found = Damaged("log", self.segment_path(one.first_offset), what)
        self.report(found, ("log", one.first_offset))
        at = bisect_left(self._known_ends, one.end_offset)
        if self._known_ends[at : at + 1] != [one.end_offset]:
            self._known_ends.insert(at, one.end_offset)

    def has_damage_between(self, behind: int, until: int) -> bool:
        """Return whether known damage to the log ends after the offset `behind` and at or before `until`."""
        return bisect_right(self._known_ends, behind) < bisect_right(self._known_ends, until)

    def report_queue_gap(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> None:
        """Report a gap in a queue that was caused by damage to the log before `physical_offset`."""
        if physical_offset <= self._log.first_offset:
            return
        what = (
            f"queue {queue_id} of topic {topic} has a gap at offset {queue_offset}: the message was lost by "
            f"damage of the log before {physical_offset}."
        )
        found = Damaged("gap", self.segment_path(physical_offset - 1), what)
        self.report(found, ("gap", topic, queue_id, physical_offset))

    def report_file(self, part: str, path: str, what: str) -> None:
        """Report a damaged file, once for the whole file."""
        self.report(Damaged(part, path, what), (part, path))

    def report_timer_gap(self, gap: Gap) -> None:
        """Report damaged bytes of a timer file, before a repair replaces the report (`report_repair`)."""
        self.report_file("partition", gap.path, str(gap))

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
