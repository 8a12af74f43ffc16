"""The filters of a group on a topic, in the oracle of receiving.

A filter is known from the first receive with it, also after a crash once its record is durable. It may be
dropped only if other filters of the group were used for `FILTER_IDLE_MS` without it and no live client used
it last, or subscribes with it without a receive since the start. The oracle has a separate clock for this.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from commitlog import limits
from consumequeue.filters.filter import FilterText
from tests.simulation.receiving_oracle import FOREVER


@dataclass(slots=True)
class Used:
    """A filter: the offsets that make its record and its end durable, and its last use by the group's clock.

    `held_ms`: the last time at which a live client held it. `before` is an earlier use of the same filter,
    which was dropped.
    """

    added_at: int
    before: Used | None = None
    used_ms: int = 0
    held_ms: int = 0
    forgotten_at: int = FOREVER
    clients: set[str] = field(default_factory=set)


@dataclass(slots=True)
class FiltersOfGroup:
    """The filters of one group on one topic."""

    used: dict[FilterText, Used] = field(default_factory=dict)
    served_ms: int = 0
    heard_ms: int = 0

    @property
    def known(self) -> set[FilterText]:
        return {text for text, one in self.used.items() if one.forgotten_at == FOREVER}

    def move_clock(self, now_ms: int) -> None:
        """Advance the clock for a receive, including one with a refused filter."""
        self.served_ms += min(max(0, now_ms - self.heard_ms), limits.FILTER_STEP_MS) if self.heard_ms else 0
        self.heard_ms = now_ms

    def use(self, text: FilterText, client: str, added_at: int | None) -> None:
        """Record a receive with a filter; the record of a new one is durable at `added_at`."""
        assert (added_at is None) == (text in self.known), f"{text} is added twice, or not at all"
        if added_at is not None:
            self.used[text] = Used(added_at, self.used.get(text))
        for one in self.used.values():
            one.clients.discard(client)
        self.used[text].used_ms = self.served_ms
        self.used[text].clients.add(client)

    def hold(self, text: FilterText, client: str) -> None:
        """Record a client's subscription; filters of its receives since the start take precedence."""
        if text in self.known and not any(client in one.clients for one in self.used.values()):
            self.used[text].clients.add(client)

    def see(self, found: set[FilterText], alive_ms: dict[str, int], now_ms: int, forgotten_at: int) -> None:
        """Verify the broker's filters: those missing were idle, and are dropped at `forgotten_at`."""
        assert found <= self.known, f"filters of nobody: {found - self.known}"
        for text in self.known - found:
            one = self.used[text]
            idle_ms = self.served_ms - one.used_ms
            assert idle_ms >= limits.FILTER_IDLE_MS, f"{text} is forgotten, and was used {idle_ms} ms ago"
            assert not self._is_held(one, alive_ms, now_ms), f"{text} is forgotten too early"
            one.forgotten_at = forgotten_at
        for text in self.known:
            if self._is_held(self.used[text], alive_ms, now_ms):
                self.used[text].held_ms = self.served_ms

    def refused(self) -> None:
        """Verify the refusal of another filter: the maximum is reached, and none is idle for long.

        A client that ended may have held a filter at a check of the broker, unseen by the oracle: idle time
        restarts there, and ends at a check.
        """
        assert len(self.known) >= limits.FILTERS_PER_GROUP_MAX, "refused for nothing"
        for text in self.known:
            one = self.used[text]
            idle_ms = self.served_ms - max(one.used_ms, one.held_ms)
            longest_ms = 2 * limits.FILTER_IDLE_MS + limits.FILTER_CHECK_MS
            assert idle_ms < longest_ms, f"{text} was used {idle_ms} ms ago, and is kept"

    def _is_held(self, one: Used, alive_ms: dict[str, int], now_ms: int) -> bool:
        beats = [now_ms - alive_ms[client] for client in one.clients if client in alive_ms]
        return any(ms < limits.FILTER_CLIENT_MS for ms in beats)

    def leave(self, durable_at: int) -> None:
        """Drop all filters: the group no longer receives the topic."""
        for text in self.known:
            self.used[text].forgotten_at = durable_at
        self.served_ms = self.heard_ms = 0

    def crash(self, end_offset: int, told_offset: int) -> None:
        """Revert to a log that ends at `end_offset`; records up to `told_offset` were acknowledged."""
        for text, last in [*self.used.items()]:
            one: Used | None = last
            while one is not None and one.added_at > end_offset:
                assert one.added_at > told_offset, f"{text} is gone, which was told"
                one = one.before
            if one is None:
                del self.used[text]
                continue
            forgotten_at = FOREVER if one.forgotten_at > end_offset else 0
            self.used[text] = Used(0, used_ms=limits.FILTER_SETTINGS_MS, forgotten_at=forgotten_at)
        self.served_ms = self.heard_ms = 0
