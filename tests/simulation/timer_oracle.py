"""An oracle with the expected state of each timer.

Each event (set, moved, canceled, fired, or delivered) is stored with the offset of its record. After a crash,
`crash` reverts the events whose records are no longer in the log. Events that were reported to clients are
below the durable offset, and the simulation asserts that no crash reverts them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from commitlog.facts.facts import timer_set
from commitlog.log.recovery import Damage
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.spine.values import PendingTimer, TimerFilter, TimerName, Verdict
from services.broker.timers.timer_records import names_of

VERDICTS = {
    "DELIVERED": Verdict.TOO_LATE,
    "FIRED": Verdict.TOO_LATE,
    "CANCELLED": Verdict.ALREADY,
    "MOVED": Verdict.ALREADY,
    "REPLACED": Verdict.ALREADY,
    "UNREADABLE": Verdict.TOO_LATE,
}


@dataclass(slots=True)
class Timer:
    """A timer. `ended` and `ended_offset` contain its outcome and the offset of the outcome record.

    `armed_at` is the end of the log when the timer was armed. `sort_ms` is the due time of the timer, or the
    time at which the timer was armed if that time is later.
    """

    offset: int
    message: Message = field(repr=False)
    due_ms: int
    stored_ms: int
    armed_at: int | None = None
    sort_ms: int = 0
    is_late_set: bool = False
    ended: str = ""
    ended_offset: int = -1
    ended_ms: int = 0
    is_seen: bool = False
    """True if the outcome record was found in the log."""
    is_held: bool = False
    """True if the timer was due while its topic was held."""

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def message_id(self) -> str:
        return self.message.message_id

    @property
    def key(self) -> str:
        return self.message.properties.get("TW_TIMER_KEY", "")

    def is_wanted(self, wanted: TimerFilter) -> bool:
        """Return whether the timer matches a filter that has no time range."""
        names = (*self.message.keys, self.key, self.message_id)
        is_named = not wanted.key or wanted.key in names
        is_tagged = not wanted.tag or wanted.tag == self.message.tag
        return (not wanted.topic or wanted.topic == self.topic) and is_named and is_tagged

    def names(self) -> list[TimerName]:
        by_id = TimerName(self.topic, self.message_id)
        return [by_id, TimerName(self.topic, key=self.key)] if self.key else [by_id]


@dataclass(slots=True)
class Half:
    """A half message, and the offset of the record that ended it."""

    offset: int
    transaction_id: str
    message: Message
    verb: tuple[str, str, int] | None
    ended_offset: int = -1


@dataclass(slots=True)
class Oracle:
    """All timers and half messages that have been created, except those reverted by a crash."""

    history_ms: int
    """The minimum history time of the broker in ms."""
    timers: dict[int, Timer] = field(default_factory=dict)
    halves: dict[int, Half] = field(default_factory=dict)
    verdicts: dict[int, str] = field(default_factory=dict)
    """The expected verdict in each carrier record, keyed by the record's offset."""
    names: defaultdict[TimerName, list[int]] = field(default_factory=lambda: defaultdict(list))
    forgotten: defaultdict[TimerName, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The timers that were the newest timers with a name when the core dropped the name."""
    holds: list[tuple[int, str, bool]] = field(default_factory=list)
    """The holds (true) and releases (false) of topics, in log order."""
    outlived: set[int] = field(default_factory=set)
    """The timers that are pending again after a crash although other timers have replaced them."""

    def set(self, timer: Timer) -> None:
        self._add(timer, timer.names())

    def _add(self, timer: Timer, names: list[TimerName]) -> None:
        assert timer.offset not in self.timers, "two timers at one offset"
        self.timers[timer.offset] = timer
        for name in names:
            self.names[name].append(timer.offset)

    def held_moved(self, old_offset: int, by: Record) -> None:
        """Replace a timer that was due while its topic was held with a new record of the same timer."""
        self.moved(old_offset, by, self.timers[old_offset].due_ms, by.store_ms)
        self.timers[by.physical_offset].is_held = True

    def end(self, timer: Timer, how: str, ended_offset: int, ended_ms: int) -> None:
        assert not timer.ended, f"timer {timer.offset} ends twice: {timer.ended}, {how}"
        timer.ended, timer.ended_offset, timer.ended_ms = how, ended_offset, ended_ms

    def named(self, name: TimerName) -> Timer | None:
        """Return the newest timer with a name, or None."""
        offsets = self.names.get(name)
        if not offsets or offsets[-1] in self.forgotten[name]:
            return None
        return self.timers[offsets[-1]]

    def is_remembered(self, timer: Timer) -> bool:
        """Return whether the key of a timer still refers to this timer."""
        name = TimerName(timer.topic, key=timer.key)
        return timer.offset in self.names[name] and timer.offset not in self.forgotten[name]

    def moved(self, old_offset: int, by: Record, due_ms: int, now_ms: int) -> None:
        """Replace a timer with the timer set by the record `by`, for example after damage to a file.

        The new timer receives the names of the old timer, except names that another timer has taken after the
        history time of the old timer. The record specifies which names the new timer receives, because the
        history time in effect determines which names are free.
        """
        old, new_offset = self.timers[old_offset], by.physical_offset
        self.end(old, "MOVED", new_offset, now_ms)
        new = replace(
            old, offset=new_offset, due_ms=due_ms, stored_ms=now_ms, armed_at=None, is_late_set=False,
            ended="", ended_offset=-1, ended_ms=0, is_seen=False, is_held=False,
        )  # fmt: skip
        given = names_of(timer_set(by.properties))
        names = [name for name in old.names() if old_offset in self.names[name]]
        assert {name for name in names if self.names[name][-1] == old_offset} <= set(given), "a name is lost"
        for name in given:
            assert name in names, f"{name} was none of {old}"
            assert self._is_free(name, old_offset, by.store_ms), f"{name} is not free for {new}"
            if self.names[name][-1] != old_offset:
                self.forget(name)  # The history time of the name's newest timer has elapsed.
        self._add(new, given)

    def _is_free(self, name: TimerName, old_offset: int, now_ms: int) -> bool:
        """Return whether a name refers to the timer that is being replaced, or to no remembered timer."""
        is_its_own = self.names[name][-1] == old_offset
        return is_its_own or self.named(name) is None or self.may_be_forgotten(name, now_ms)

    def lost(self, offset: int, by: Record, first_offset: int) -> None:
        """End a timer whose record no longer exists. The log begins at `first_offset`."""
        timer = self.timers[offset]
        assert offset < first_offset, f"{timer} is given up, yet the log has it"
        self.end(timer, "UNREADABLE", by.physical_offset, by.store_ms)

    def forget(self, name: TimerName) -> None:
        """Record that the core has dropped the outcome of the newest timer with a name."""
        self.forgotten[name].add(self.names[name][-1])

    def waiting(self, name: TimerName) -> Timer | None:
        found = self.named(name)
        return None if found is None or found.ended else found

    def pending(self) -> dict[int, Timer]:
        return {offset: timer for offset, timer in self.timers.items() if not timer.ended}

    def expected(self, name: TimerName) -> Verdict | None:
        """Return the expected verdict of a command for a named timer, or None if the timer is pending."""
        found = self.named(name)
        if found is None:
            return Verdict.NEVER_SET
        return VERDICTS[found.ended] if found.ended else None

    def may_be_forgotten(self, name: TimerName, now_ms: int) -> bool:
        found = self.named(name)
        if found is not None and found.is_held and found.armed_at is not None and not found.ended:
            return False
        return found is not None and max(found.due_ms, found.stored_ms) + self.history_ms < now_ms

    def is_held(self, topic: str, at: int | None = None) -> bool:
        """Return whether a topic is held or, if `at` is given, was held at this log offset."""
        told = [
            is_held for offset, name, is_held in self.holds if name == topic and (at is None or offset < at)
        ]
        return bool(told) and told[-1]

    def crash(self, end_offset: int, gaps: list[Damage]) -> None:
        """Revert all events whose records are after the end of the log or in a gap.

        A timer is pending again if the timer that replaced it is lost. If a remaining timer had in turn
        replaced the lost timer, the first timer is `outlived`, and two timers with the same key are pending.
        """

        def is_gone(offset: int) -> bool:
            is_in_gap = any(gap.first_offset <= offset < gap.end_offset for gap in gaps)
            return offset >= end_offset or is_in_gap

        self.outlived = {offset for offset in self.outlived if not is_gone(offset)} | {
            offset
            for offset, timer in self.timers.items()
            if not is_gone(offset) and self._is_outlived(timer, is_gone)
        }
        for offset in [offset for offset in self.timers if is_gone(offset)]:
            for name in self.timers.pop(offset).names():
                if offset in self.names[name]:
                    self.names[name].remove(offset)
                self.forgotten[name].discard(offset)
        for timer in self.timers.values():
            if timer.ended and is_gone(timer.ended_offset):
                assert not timer.is_seen, "what was durable is gone"
                timer.ended, timer.ended_offset, timer.ended_ms = "", -1, 0
        self.holds = [one for one in self.holds if not is_gone(one[0])]
        self.halves = {offset: half for offset, half in self.halves.items() if not is_gone(offset)}
        for half in self.halves.values():
            if half.ended_offset >= 0 and is_gone(half.ended_offset):
                half.ended_offset = -1
        self.verdicts = {offset: text for offset, text in self.verdicts.items() if not is_gone(offset)}

    def _is_outlived(self, timer: Timer, is_gone: Callable[[int], bool]) -> bool:
        """Return whether the lost replacements of a timer were in turn replaced by an existing timer."""
        first_offset, offset = timer.ended_offset, timer.ended_offset
        while timer.ended in ("MOVED", "REPLACED") and is_gone(offset):
            timer = self.timers[offset]
            offset = timer.ended_offset
        return offset != first_offset and timer.ended in ("MOVED", "REPLACED")

    def check_page(self, listed: list[PendingTimer]) -> None:
        """Verify that exactly the pending timers are listed."""
        pending = self.pending()
        offsets = [one.timer_offset for one in listed]
        assert len(offsets) == len(set(offsets)), "listed twice"
        assert set(offsets) == set(pending), (
            f"not listed {sorted(set(pending) - set(offsets))}, listed {sorted(set(offsets) - set(pending))}"
        )
        for one in listed:
            self.check_look(one, pending[one.timer_offset])
        plain = [(t.due_ms, t.offset) for t in (pending[o] for o in offsets) if not t.is_late_set]
        assert plain == sorted(plain), "not listed by due time"

    def check_look(self, one: PendingTimer, timer: Timer) -> None:
        assert (one.timer_offset, one.due_ms, one.timer_key, one.message_id, one.topic) == (
            timer.offset, timer.due_ms, timer.key, timer.message_id, timer.topic,
        )  # fmt: skip
        assert one.is_held == timer.is_held

    def check_keys(self) -> None:
        """Verify that at most one timer is pending for each remembered key, except outlived timers."""
        waiting = [one for one in self.pending().values() if one.offset not in self.outlived]
        named = [one for one in waiting if one.key and self.is_remembered(one)]
        keys = [(timer.topic, timer.key) for timer in named]
        assert len(keys) == len(set(keys)), "two wait for one key"
