"""What must be true of every timer, as a dictionary that follows the log.

Each event (set, moved, cancelled, fired, delivered) is noted with the offset of the record that says it. So
after a crash what holds is exactly what lies below the log's end: `crash` undoes the rest. What clients were
told lies below the durable offset, and the world asserts that no crash takes that away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from commitlog.facts.facts import timer_set
from commitlog.message import Message
from commitlog.record import Record
from commitlog.recovery import Damage
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
    """One timer; `ended` and `ended_offset` say how and where.

    `armed_at` is the log's end when it was armed, `sort_ms` is its due time or that moment if it is later.
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
    """Whether the record of its end was found in the log."""
    is_held: bool = False
    """Whether it was due while its topic was held."""

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
        """Whether a filter without times is to find it."""
        names = (*self.message.keys, self.key, self.message_id)
        is_named = not wanted.key or wanted.key in names
        is_tagged = not wanted.tag or wanted.tag == self.message.tag
        return (not wanted.topic or wanted.topic == self.topic) and is_named and is_tagged

    def names(self) -> list[TimerName]:
        by_id = TimerName(self.topic, self.message_id)
        return [by_id, TimerName(self.topic, key=self.key)] if self.key else [by_id]


@dataclass(slots=True)
class Half:
    """A half message and where it ended."""

    offset: int
    transaction_id: str
    message: Message
    verb: tuple[str, str, int] | None
    ended_offset: int = -1


@dataclass(slots=True)
class Oracle:
    """All timers and halves there ever were, less what a crash undid."""

    history_ms: int
    """The shortest that the broker ever has."""
    timers: dict[int, Timer] = field(default_factory=dict)
    halves: dict[int, Half] = field(default_factory=dict)
    verdicts: dict[int, str] = field(default_factory=dict)
    """What a carrier's record must say, by its offset."""
    names: defaultdict[TimerName, list[int]] = field(default_factory=lambda: defaultdict(list))
    forgotten: defaultdict[TimerName, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The timers that were the newest of a name when the core said that it has forgotten them."""
    holds: list[tuple[int, str, bool]] = field(default_factory=list)
    """Where a topic was held (true) or released, in log order."""
    outlived: set[int] = field(default_factory=set)
    """The timers that wait again since a crash though others have their place."""

    def set(self, timer: Timer) -> None:
        self._add(timer, timer.names())

    def _add(self, timer: Timer, names: list[TimerName]) -> None:
        assert timer.offset not in self.timers, "two timers at one offset"
        self.timers[timer.offset] = timer
        for name in names:
            self.names[name].append(timer.offset)

    def held_moved(self, old_offset: int, by: Record) -> None:
        """A timer that was due while its topic was held takes its own place, with its names."""
        self.moved(old_offset, by, self.timers[old_offset].due_ms, by.store_ms)
        self.timers[by.physical_offset].is_held = True

    def end(self, timer: Timer, how: str, ended_offset: int, ended_ms: int) -> None:
        assert not timer.ended, f"timer {timer.offset} ends twice: {timer.ended}, {how}"
        timer.ended, timer.ended_offset, timer.ended_ms = how, ended_offset, ended_ms

    def named(self, name: TimerName) -> Timer | None:
        """The newest timer of a name."""
        offsets = self.names.get(name)
        if not offsets or offsets[-1] in self.forgotten[name]:
            return None
        return self.timers[offsets[-1]]

    def is_remembered(self, timer: Timer) -> bool:
        """Whether a timer is the one that its key means: not if it is late by more than the history."""
        name = TimerName(timer.topic, key=timer.key)
        return timer.offset in self.names[name] and timer.offset not in self.forgotten[name]

    def moved(self, old_offset: int, by: Record, due_ms: int, now_ms: int) -> None:
        """A timer, set `by` a record, takes the place of another, be it one of a damaged file.

        And its names, but for those that another one has by now, since it was forgotten: whether that is
        forgotten itself, so that the name is free, hangs on the history of this moment, and the record says.
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
                self.forget(name)  # whoever had it since is late by more than the history
        self._add(new, given)

    def _is_free(self, name: TimerName, old_offset: int, now_ms: int) -> bool:
        """Whether a name means a timer that is rebuilt, or nobody that is remembered."""
        is_its_own = self.names[name][-1] == old_offset
        return is_its_own or self.named(name) is None or self.may_be_forgotten(name, now_ms)

    def lost(self, offset: int, by: Record, first_offset: int) -> None:
        """Nobody has the record of a timer any more, says another; `first_offset` is where the log begins."""
        timer = self.timers[offset]
        assert offset < first_offset, f"{timer} is given up, yet the log has it"
        self.end(timer, "UNREADABLE", by.physical_offset, by.store_ms)

    def forget(self, name: TimerName) -> None:
        """The core has forgotten what became of the newest timer of a name."""
        self.forgotten[name].add(self.names[name][-1])

    def waiting(self, name: TimerName) -> Timer | None:
        found = self.named(name)
        return None if found is None or found.ended else found

    def pending(self) -> dict[int, Timer]:
        return {offset: timer for offset, timer in self.timers.items() if not timer.ended}

    def expected(self, name: TimerName) -> Verdict | None:
        """The verdict that a verb by that name must have; None if the timer waits."""
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
        """Whether a topic is held, or was held at an offset of the log."""
        told = [
            is_held for offset, name, is_held in self.holds if name == topic and (at is None or offset < at)
        ]
        return bool(told) and told[-1]

    def crash(self, end_offset: int, gaps: list[Damage]) -> None:
        """Undoes everything that the log does not hold any more: behind its end, and in its gaps.

        A timer that was replaced by one that is gone waits again. It is `outlived` if one that is there had
        replaced that in turn: two wait for its key.
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
        """Whether replacements of a timer that are gone were replaced in turn by one that is not."""
        first_offset, offset = timer.ended_offset, timer.ended_offset
        while timer.ended in ("MOVED", "REPLACED") and is_gone(offset):
            timer = self.timers[offset]
            offset = timer.ended_offset
        return offset != first_offset and timer.ended in ("MOVED", "REPLACED")

    def check_page(self, listed: list[PendingTimer]) -> None:
        """What is listed is exactly what waits."""
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
        """At most one waits for each key that is remembered, but for those that were outlived."""
        waiting = [one for one in self.pending().values() if one.offset not in self.outlived]
        named = [one for one in waiting if one.key and self.is_remembered(one)]
        keys = [(timer.topic, timer.key) for timer in named]
        assert len(keys) == len(set(keys)), "two wait for one key"
