"""Filters of consumer groups. A group receives every message that matches a filter of any of its clients.

RocketMQ keeps a single filter per group and topic. If the clients of a group use different filters, messages
are lost, because a message that does not match the filter of one client is considered finished for the whole
group. Tidewheel skips a message only if it matches no filter of the group:

    no filter of the group matches a message          finished
    the filter of the receive matches a message       leased
    only other filters of the group match a message   set aside for them (`consumequeue.groups.set_aside`)

    a receive has a known filter                      mark the filter as used
    a receive has a new filter                        append a record of it before any message is skipped
    a filter is not used for FILTER_IDLE_MS           append its removal; reevaluate set-aside messages

Rules
1. Filters are recorded in the log (`TW_SYS_GROUP`, see `groups.py`) and are therefore known before the first
   client request after a restart or a change of leader.
2. A group has at most `FILTERS_PER_GROUP_MAX` filters on a topic. The evaluation of all filters of a group
   for one message cannot be interrupted, and may therefore cost at most `FILTERS_WORK_MAX`. A new filter that
   would exceed one of these limits is rejected. Filters are equal if their texts are equal
   (`consumequeue.filters.filter.FilterText`).
3. A filter that has not been used since startup is kept for an additional `FILTER_SETTINGS_MS`, to give
   clients time to report their subscriptions.
4. Idle time accumulates only while the group is receiving. Each receive advances the clock of a `FilterSet`
   by at most `FILTER_STEP_MS`. Without this limit, the first receive after a pause would remove the filters
   of other clients.
5. A filter is kept while one of its latest clients sends heartbeats, because a push consumer with a full
   cache sends no receive requests. The filter of a client is the filter of its latest receive. After a
   restart or a change of leader, the filter of a client is that of its subscription until the first receive
   (`GroupFilters.record_subscription`).
6. A recorded filter that this version cannot parse matches every message, which prevents the loss of
   messages.

The log contains only the texts of filters. Clocks, clients, and filter bits are lost on restart.

Memory usage is 1 KiB per group and topic, plus at most `FILTERS_BYTES_MAX` bytes for the filter texts of all
groups. Cost: each receive performs one identity test and marks its filter as used. Limitation: a message that
matches only an unused filter blocks its message group until the filter is removed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from commitlog import limits
from commitlog.snapshots.snapshot import Rows
from consumequeue.filters.errors import IllegalFilter
from consumequeue.filters.filter import EVERYTHING, SQL, Filter, FilterText, parse_tags
from services.broker.spine.errors import TooManyFilters

_SHOWN_CHARACTERS: Final = 80
GroupTopic = tuple[str, str]
"""A pair of a group name and a topic name."""


@dataclass(slots=True, eq=False)
class KnownFilter:
    """A filter that a group uses on a topic.

    `used_ms` is the time at which the filter was last used, measured by the clock of the `FilterSet`.
    """

    filter: Filter
    bit: int
    others: tuple[KnownFilter, ...] = ()
    """The other filters of the group on the topic."""
    used_ms: int = 0
    is_used: bool = False
    """Whether a client has used the filter since startup."""
    clients: dict[str, None] = field(default_factory=dict)
    """The latest clients of the filter, up to `FILTER_CLIENTS_MAX`, oldest first."""


class FilterSet:
    """The filters of a group on a topic, with derived state."""

    def __init__(self, texts: Iterable[FilterText]) -> None:
        self.known = {text: KnownFilter(_parsed(text), 1 << place) for place, text in enumerate(texts)}
        for one in self.known.values():
            one.others = tuple(other for other in self.known.values() if other is not one)
        codes = [one.filter.tags_codes for one in self.known.values()]
        sets = [one for one in codes if one is not None]
        self.tags_codes = frozenset().union(*sets) if len(sets) == len(codes) else None
        """The hash codes of tags that may match, or None if all tags may match."""
        self.queue_ids: set[int] = set()
        """The ids of queues that may have set-aside messages."""
        self._latest: KnownFilter | None = None
        self._served_ms = self._heard_ms = self._looked_ms = 0

    def find(self, wanted: Filter) -> KnownFilter | None:
        """Return the filter of the group that has the same text as `wanted`, or None."""
        latest = self._latest
        if latest is not None and latest.filter is wanted:
            return latest
        self._latest = latest = self.known.get(wanted.text)
        if latest is not None:
            latest.filter = wanted
        return latest

    def advance_clock(self, now_ms: int) -> None:
        """Advance the clock for a receive, even if its filter is rejected."""
        step_ms = now_ms - self._heard_ms
        if step_ms > 0:
            self._served_ms += min(step_ms, limits.FILTER_STEP_MS) if self._heard_ms else 0
        self._heard_ms = now_ms

    def record_use(self, known: KnownFilter, client_id: str) -> bool:
        """Record that a receive uses a filter. Return whether the client has switched to this filter."""
        known.used_ms, known.is_used = self._served_ms, True
        if client_id in known.clients:
            return False
        for other in known.others:
            other.clients.pop(client_id, None)
        known.clients[client_id] = None
        if len(known.clients) > limits.FILTER_CLIENTS_MAX:
            del known.clients[next(iter(known.clients))]
        return True

    def add_client(self, text: FilterText, client_id: str) -> None:
        """Add a client to a filter unless the client already uses a filter."""
        known = self.known[text]
        is_new = not any(client_id in one.clients for one in self.known.values())
        if is_new and len(known.clients) < limits.FILTER_CLIENTS_MAX:
            known.clients[client_id] = None

    def idle_filters(self, alive_ms: dict[str, int], now_ms: int) -> list[FilterText]:
        """Return the filters that have become idle.

        `alive_ms` maps each client id to the time of its last heartbeat.
        """
        if self._served_ms - self._looked_ms < limits.FILTER_CHECK_MS:
            return []
        self._looked_ms = self._served_ms
        found = []
        for text, one in self.known.items():
            more_ms = 0 if one.is_used else limits.FILTER_SETTINGS_MS
            if self._served_ms - one.used_ms < limits.FILTER_IDLE_MS + more_ms:
                continue
            if any(now_ms - alive_ms.get(client, 0) < limits.FILTER_CLIENT_MS for client in one.clients):
                one.used_ms = self._served_ms
            else:
                found.append(text)
        return found


class GroupFilters:
    """The filters of all consumer groups."""

    def __init__(self) -> None:
        self._texts: dict[GroupTopic, dict[FilterText, None]] = {}
        self._sets: dict[GroupTopic, FilterSet] = {}
        self._bytes = 0
        self._alive_ms: dict[str, int] = {}

    def filter_set(self, group: str, topic: str) -> FilterSet:
        """Return the filter set of a group on a topic, creating it on first use."""
        found = self._sets.get((group, topic))
        if found is None:
            found = self._sets[group, topic] = FilterSet(self._texts.get((group, topic), ()))
        return found

    def peek(self, group: str, topic: str) -> FilterSet:
        """Return the filter set of a group on a topic for reading only."""
        return self._sets.get((group, topic)) or FilterSet(self._texts.get((group, topic), ()))

    def texts(self, group: str, topic: str) -> list[FilterText]:
        """Return the filter texts of a group on a topic, oldest first."""
        return list(self._texts.get((group, topic), ()))

    def all(self) -> list[tuple[str, str, list[FilterText]]]:
        """Return (group, topic, filter texts) for each group and topic with filters."""
        return [(*use, list(texts)) for use, texts in self._texts.items()]

    def groups_with_mixed_filters(self) -> list[GroupTopic]:
        """Return the (group, topic) pairs with more than one filter."""
        return [use for use, texts in self._texts.items() if len(texts) > 1]

    def check_room(self, group: str, topic: str, wanted: Filter) -> None:
        """Raise `TooManyFilters` if a new filter would exceed a limit."""
        text, known = wanted.text, self._texts.get((group, topic), ())
        if len(known) >= limits.FILTERS_PER_GROUP_MAX:
            shown = "; ".join(map(format_filter, known))
            raise TooManyFilters(
                f"{group} has {len(known)} filters on {topic} already, the maximum: {shown}. "
                f"{format_filter(text)} is another one. Use the same filters in all clients of the group, or "
                "another group for this one. A filter is forgotten when its clients are gone and others of "
                f"the group were used for {limits.FILTER_IDLE_MS // 60_000} minutes."
            )
        self._check_evaluation_cost(group, topic, wanted)
        if self._bytes + _text_bytes(text) > limits.FILTERS_BYTES_MAX:
            raise TooManyFilters(
                f"The filters of all groups have {self._bytes} bytes, the limit is "
                f"{limits.FILTERS_BYTES_MAX}. Use shorter filters, or delete groups that are not used: "
                "tidewheel group ls, then tidewheel group delete NAME --yes."
            )

    def _check_evaluation_cost(self, group: str, topic: str, wanted: Filter) -> None:
        """Raise `TooManyFilters` if the evaluation of all filters of a group would take too long."""
        others = [(_evaluation_cost(one.filter), text) for text, one in self.peek(group, topic).known.items()]
        work, taken = _evaluation_cost(wanted), sum(work for work, _ in others)
        if work + taken <= limits.FILTERS_WORK_MAX or not others:
            return
        shown = "; ".join(f"{format_filter(text)} ({_format_ms(one)})" for one, text in others)
        raise TooManyFilters(
            f"{format_filter(wanted.text)} takes up to {_format_ms(work)} to judge a message, and the other "
            f"filters of {group} on {topic} take {_format_ms(taken)}: {shown}. The limit is "
            f"{_format_ms(limits.FILTERS_WORK_MAX)} for all. Use fewer CONTAINS, the same filters in all "
            "clients of the group, or another group for this one. A filter is forgotten when its clients are "
            f"gone and others of the group were used for {limits.FILTER_IDLE_MS // 60_000} minutes."
        )

    def record_heartbeat(self, client_id: str, now_ms: int) -> None:
        """Record a client heartbeat."""
        self._alive_ms.pop(client_id, None)
        self._alive_ms[client_id] = now_ms
        if len(self._alive_ms) > limits.CLIENTS_MAX:
            del self._alive_ms[next(iter(self._alive_ms))]

    def remove_client(self, client_id: str) -> None:
        """Remove a client that has left, so that its filters can become idle."""
        self._alive_ms.pop(client_id, None)

    def record_subscription(self, group: str, topic: str, text: FilterText, client_id: str) -> None:
        """Treat a client as a user of the filter in its subscription until its first receive."""
        if text in self._texts.get((group, topic), ()):
            self.filter_set(group, topic).add_client(text, client_id)

    def idle_filters(self, group: str, topic: str, now_ms: int) -> list[FilterText]:
        """Return the idle filters of a group on a topic."""
        return self.filter_set(group, topic).idle_filters(self._alive_ms, now_ms)

    def add(self, group: str, topic: str, text: FilterText) -> set[int]:
        """Add a filter. Return the ids of queues with messages to reevaluate."""
        texts = self._texts.get((group, topic), {})
        if text not in texts:
            self._texts[group, topic] = texts | {text: None}  # A checkpoint may still read the old dict.
            self._bytes += _text_bytes(text)
        return self._rebuild_set(group, topic)

    def forget(self, group: str, topic: str, texts: Iterable[FilterText]) -> set[int]:
        """Remove filters. Return the ids of queues with messages to reevaluate."""
        known, gone = self._texts.get((group, topic), {}), {*texts}
        self._bytes -= sum(_text_bytes(text) for text in known if text in gone)
        self._texts[group, topic] = {text: None for text in known if text not in gone}
        if not self._texts[group, topic]:
            del self._texts[group, topic]
        return self._rebuild_set(group, topic)

    def remove_group(self, group: str, topic: str) -> None:
        """Remove the filters of a group on a topic, or on all topics if `topic` is empty."""
        for use in [one for one in self._texts if one[0] == group and topic in ("", one[1])]:
            self._bytes -= sum(map(_text_bytes, self._texts.pop(use)))
        for use in [one for one in self._sets if one[0] == group and topic in ("", one[1])]:
            del self._sets[use]

    def freeze(self) -> Any:
        """Return the texts of all filters for a snapshot."""
        return Rows([self._texts.copy()], lambda use, texts: [*use, [list(text) for text in texts]])

    def thaw(self, frozen: Any) -> None:
        """Restore the state from a snapshot."""
        for group, topic, texts in frozen:
            for text in texts:
                self.add(group, topic, FilterText(*text))

    def _rebuild_set(self, group: str, topic: str) -> set[int]:
        """Rebuild a filter set from its texts, and keep its clock, use times, and clients.

        Return the ids of the queues that may have set-aside messages.
        """
        before = self._sets.pop((group, topic), None)
        if before is None:
            return set()
        after = self.filter_set(group, topic)
        after._served_ms, after._heard_ms = before._served_ms, before._heard_ms
        for text, known in after.known.items():
            kept = before.known.get(text)
            known.used_ms = after._served_ms if kept is None else kept.used_ms
            known.is_used = kept is not None and kept.is_used
            known.clients = {} if kept is None else kept.clients
        return before.queue_ids


def format_filter(text: FilterText) -> str:
    """Return a filter as text for display. Truncate a long expression, and append its CRC-32."""
    expression = text.expression
    if len(expression) <= _SHOWN_CHARACTERS:
        return f"{text.type} {expression}"
    return f"{text.type} {expression[:_SHOWN_CHARACTERS]}... ({zlib.crc32(expression.encode()):08x})"


def _parsed(text: FilterText) -> Filter:
    with suppress(IllegalFilter):
        if text.type != SQL:
            return parse_tags(text.expression)
        # The import is deferred, because building the parser takes 90 ms, which would delay every command.
        from consumequeue.filters.sql_filter import parse_sql

        return parse_sql(text.expression)
    return EVERYTHING


def _evaluation_cost(one: Filter) -> int:
    return one.work(limits.PROPERTIES_USER_BYTES_MAX)


def _format_ms(work: int) -> str:
    return f"{work * limits.WORK_NS / 1e6:.1f} ms"


def _text_bytes(text: FilterText) -> int:
    return len(text.expression.encode())
