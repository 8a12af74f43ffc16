"""Collect the damage found in the store since startup, for the server log, metrics, /readyz, and views.

    startup, background check, repair -------+
    Store.read, .read_appended, .read_entry -+--> list (bounded, no duplicates) --> listeners
    Store.offsets_by_key_or_id, TimerEnds,          |
    Timers.read_row, queue files, gaps ------+

1. Damage is reported when bytes are read, not when an error is handled. A caller can therefore catch
   `StoreDamaged` or skip a record without losing the report. Within `services/broker`, only the functions in
   the diagram read the log, the indexes, and the partitions. tests/unit/services/broker/spine/test_damage.py
   parses the source code to verify this rule.
2. Each damaged location is counted once. A file is identified by part and path, and a log record by offset.
   The outcome of a repair replaces the entry of the damaged file and is also reported (`report_repair`).
3. A gap in a queue is reported unless known log damage after the preceding entry explains the gap. Otherwise,
   the loss would go unnoticed, because groups skip the lost message, and later recoveries read only the part
   of the log after a newer snapshot. A gap at the beginning of a queue is explained by any known damage at a
   lower log offset. A search by tag stops at a gap, because the tag of the lost message is unknown. Groups
   skip gaps only in `Groups.skip_gap`, which reports each gap.
4. The list contains at most DAMAGE_KEPT_MAX locations and one overflow entry. After an overflow, unreadable
   records are only counted in `unreadable_records`.

A new listener is called for each existing entry, and later for each new entry. An undamaged store incurs no
overhead. Limitation: damage found by a worker thread, for example during a checkpoint, is reported only when
the event loop processes the worker's result.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from commitlog import layout, limits
from commitlog.errors import StoreDamaged
from commitlog.log.log import CommitLog
from commitlog.log.recovery import Damage
from services.broker.spine.values import DamagedPart
from timingwheel.partition import Gap

Listener = Callable[[DamagedPart], None]

_FULL: Final = DamagedPart(
    "log",
    "",
    f"more than {limits.DAMAGE_KEPT_MAX} places are damaged; further ones are only counted, by "
    "mq_unreadable_records_total. Stop the broker and run: tidewheel store verify.",
)


class DamageList:
    """The damaged locations of a store, in the order of detection."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._places: dict[Hashable, DamagedPart] = {}
        self._listeners: list[Listener] = []
        self._known_ends = list[int]()
        """The end offsets of known damaged log ranges, in ascending order."""
        self.unreadable_records = 0
        """The number of reads that encountered a damaged record."""

    def __iter__(self) -> Iterator[DamagedPart]:
        return iter(self._places.values())

    def __len__(self) -> int:
        return len(self._places)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` for each known damaged location, and later for each new location."""
        for found in self:
            listener(found)
        self._listeners.append(listener)

    def report(self, found: DamagedPart, place: Hashable = None) -> None:
        """Report damage unless the location `place` is already known. `place` defaults to `found`."""
        place = place or found
        if place not in self._places:
            self._put(place, found)

    def report_repair(self, found: DamagedPart) -> None:
        """Replace the entry of a damaged file with the outcome of the repair, and report the outcome."""
        self._put((found.part, found.path), found)

    def report_record(self, physical_offset: int, error: StoreDamaged) -> None:
        """Report an unreadable record at a log offset unless retention has deleted it."""
        log = self._log
        if physical_offset in log.keep:
            part, path = "keep", log.keep.file_of(physical_offset)
        elif physical_offset >= log.first_offset:
            part, path = "log", self.segment_path(physical_offset)
        else:
            return
        self.unreadable_records += 1
        self.report(DamagedPart(part, path, error.detail), (part, physical_offset))

    def report_log_range(self, one: Damage) -> None:
        """Report a damaged range of the log."""
        what = f"the log is damaged from {one.first_offset} to {one.end_offset}; what lay there is lost."
        found = DamagedPart("log", self.segment_path(one.first_offset), what)
        self.report(found, ("log", one.first_offset))
        at = bisect_left(self._known_ends, one.end_offset)
        if self._known_ends[at : at + 1] != [one.end_offset]:
            self._known_ends.insert(at, one.end_offset)

    def has_damage_between(self, behind: int, until: int) -> bool:
        """Return whether a known damaged log range ends after `behind` and at or before `until`."""
        return bisect_right(self._known_ends, behind) < bisect_right(self._known_ends, until)

    def report_queue_gap(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> None:
        """Report a queue gap that was caused by log damage before `physical_offset`.

        Ignore the gap if `physical_offset` is not above the first offset of the log.
        """
        if physical_offset <= self._log.first_offset:
            return
        what = (
            f"queue {queue_id} of topic {topic} has a gap at offset {queue_offset}: the message was lost by "
            f"damage of the log before {physical_offset}."
        )
        found = DamagedPart("gap", self.segment_path(physical_offset - 1), what)
        self.report(found, ("gap", topic, queue_id, physical_offset))

    def report_file(self, part: str, path: str, what: str) -> None:
        """Report a damaged file unless the file was reported before."""
        self.report(DamagedPart(part, path, what), (part, path))

    def report_timer_gap(self, gap: Gap) -> None:
        """Report damaged bytes in a timer file. `report_repair` replaces the report after a repair."""
        self.report_file("partition", gap.path, str(gap))

    def segment_path(self, offset: int) -> str:
        """Return the path of the log segment that contains `offset`."""
        return layout.segment_path(self._log.segment_of(offset))

    def _put(self, place: Hashable, found: DamagedPart) -> None:
        if place not in self._places and len(self._places) >= limits.DAMAGE_KEPT_MAX:
            place = found = _FULL
        if self._places.get(place) != found:
            self._places[place] = found
            for listener in self._listeners:
                listener(found)
