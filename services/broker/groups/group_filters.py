"""The filters of consumer groups: a group asks a topic for the union of what its clients ask for.

RocketMQ keeps one filter per group and topic, so clients of one group with different filters lose messages
for each other: what one filter does not match counts as done for the group. Here a message is passed over
only if no filter of the group matches it:

    no filter of the group matches it                 done
    the filter of the receive matches it              leased
    only other filters of the group match it          set aside for them (`consumequeue.set_aside`)

    a receive brings a filter that is known           the filter was used
    a receive brings a new filter                     a record adds it, before it passes anything over
    a filter is not used for FILTER_IDLE_MS           a record forgets it; what is set aside is judged again

Rules
1. The filters of a group are records (`TW_SYS_GROUP`, see `groups.py`), so a start and another leader know
   them before a client has called again.
2. A group has `FILTERS_PER_GROUP_MAX` filters on a topic at most, which take `FILTERS_WORK_MAX` together to
   judge a message: nothing interrupts that. One more is refused. Filters are the same if their texts are
   (`consumequeue.filter.FilterText`).
3. After a start a filter that was not used since has `FILTER_SETTINGS_MS` more: within that time clients say
   what they subscribe to.
4. Idle time is time in which other filters of the group are used: the clock of a `FilterSet` moves with the
   receives of the group, by `FILTER_STEP_MS` each at most. While all clients are away it stands still, so
   the first client to come back does not outlive the filters of the others.
5. A filter stays while one of the clients that used it last sends heartbeats: a push consumer whose cache is
   full does not receive. A client counts for the filter that it used last; until it receives after a start or
   from a new leader, for the filter of its subscription (`GroupFilters.client_subscribes`).
6. A filter that this version cannot read, though a record has it, matches everything: nothing is lost.

Only the texts are state of the log. The rest (clocks, clients, bits) is derived, and begins anew at a start.

Memory: 1 KiB a group and topic, and the texts, `FILTERS_BYTES_MAX` of all groups together. Cost of a receive:
one identity test for the filter, and the note that it was used. Weak spot: a message that no client with its
filter fetches holds its message group closed until the filter is forgotten.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from commitlog import limits
from commitlog.snapshot import Rows
from consumequeue.errors import IllegalFilter
from consumequeue.filter import EVERYTHING, SQL, Filter, FilterText, parse_tags
from services.broker.spine.errors import TooManyFilters

_SHOWN_CHARACTERS: Final = 80
Use = tuple[str, str]
"""A group and a topic."""


@dataclass(slots=True, eq=False)
class KnownFilter:
    """A filter of a group on a topic; `used_ms` is on the clock of its `FilterSet`."""

    filter: Filter
    bit: int
    others: tuple[KnownFilter, ...] = ()
    """The other filters of the group."""
    used_ms: int = 0
    is_used: bool = False
    """Whether a client used it since the start."""
    clients: dict[str, None] = field(default_factory=dict)
    """The clients that used it last, `FILTER_CLIENTS_MAX` of them, the newest last."""


class FilterSet:
    """The filters of one group on one topic, as far as they are derived."""

    def __init__(self, texts: Iterable[FilterText]) -> None:
        self.known = {text: KnownFilter(_parsed(text), 1 << place) for place, text in enumerate(texts)}
        for one in self.known.values():
            one.others = tuple(other for other in self.known.values() if other is not one)
        codes = [one.filter.tags_codes for one in self.known.values()]
        sets = [one for one in codes if one is not None]
        self.tags_codes = frozenset().union(*sets) if len(sets) == len(codes) else None
        """The hashes of the tags that some filter may match; None if any may."""
        self.queue_ids: set[int] = set()
        """The queues on which messages may be set aside."""
        self._latest: KnownFilter | None = None
        self._served_ms = self._heard_ms = self._looked_ms = 0

    def find(self, wanted: Filter) -> KnownFilter | None:
        """Return a filter of the group; None if it is new."""
        latest = self._latest
        if latest is not None and latest.filter is wanted:
            return latest
        self._latest = latest = self.known.get(wanted.text)
        if latest is not None:
            latest.filter = wanted
        return latest

    def move_clock(self, now_ms: int) -> None:
        """Note that a client receives, be it with a filter that is refused."""
        step_ms = now_ms - self._heard_ms
        if step_ms > 0:
            self._served_ms += min(step_ms, limits.FILTER_STEP_MS) if self._heard_ms else 0
        self._heard_ms = now_ms

    def use(self, known: KnownFilter, client_id: str) -> bool:
        """Note that a client receives with a filter; return whether it used another before, or none."""
        known.used_ms, known.is_used = self._served_ms, True
        if client_id in known.clients:
            return False
        for other in known.others:
            other.clients.pop(client_id, None)
        known.clients[client_id] = None
        if len(known.clients) > limits.FILTER_CLIENTS_MAX:
            del known.clients[next(iter(known.clients))]
        return True

    def hold(self, text: FilterText, client_id: str) -> None:
        """Let a client that has used no filter yet count for this one."""
        known = self.known[text]
        is_new = not any(client_id in one.clients for one in self.known.values())
        if is_new and len(known.clients) < limits.FILTER_CLIENTS_MAX:
            known.clients[client_id] = None

    def idle(self, alive_ms: dict[str, int], now_ms: int) -> list[FilterText]:
        """Return the filters that are to be forgotten; `alive_ms` has the last heartbeat of each client."""
        if self._served_ms - self._looked_ms < limits.FILTER_LOOK_MS:
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
    """The filters of all groups."""

    def __init__(self) -> None:
        self._texts: dict[Use, dict[FilterText, None]] = {}
        self._sets: dict[Use, FilterSet] = {}
        self._bytes = 0
        self._alive_ms: dict[str, int] = {}

    def of(self, group: str, topic: str) -> FilterSet:
        """Return the filters of a group on a topic."""
        found = self._sets.get((group, topic))
        if found is None:
            found = self._sets[group, topic] = FilterSet(self._texts.get((group, topic), ()))
        return found

    def look(self, group: str, topic: str) -> FilterSet:
        """Return the same, to be looked at: nothing is made of it."""
        return self._sets.get((group, topic)) or FilterSet(self._texts.get((group, topic), ()))

    def texts(self, group: str, topic: str) -> list[FilterText]:
        """Return the filters of a group on a topic as texts, the oldest first."""
        return list(self._texts.get((group, topic), ()))

    def all(self) -> list[tuple[str, str, list[FilterText]]]:
        """Return all filters: group, topic, texts."""
        return [(*use, list(texts)) for use, texts in self._texts.items()]

    def mixed(self) -> list[Use]:
        """Return the groups and topics with several filters."""
        return [use for use, texts in self._texts.items() if len(texts) > 1]

    def check_room(self, group: str, topic: str, wanted: Filter) -> None:
        """Raise `TooManyFilters` if a group may not have one more filter on a topic."""
        text, known = wanted.text, self._texts.get((group, topic), ())
        if len(known) >= limits.FILTERS_PER_GROUP_MAX:
            shown = "; ".join(map(shown_filter, known))
            raise TooManyFilters(
                f"{group} has {len(known)} filters on {topic} already, the maximum: {shown}. "
                f"{shown_filter(text)} is another one. Use the same filters in all clients of the group, or "
                "another group for this one. A filter is forgotten when its clients are gone and others of "
                f"the group were used for {limits.FILTER_IDLE_MS // 60_000} minutes."
            )
        self._check_work(group, topic, wanted)
        if self._bytes + _text_bytes(text) > limits.FILTERS_BYTES_MAX:
            raise TooManyFilters(
                f"The filters of all groups have {self._bytes} bytes, the limit is "
                f"{limits.FILTERS_BYTES_MAX}. Use shorter filters, or delete groups that are not used: "
                "tidewheel group ls, then tidewheel group delete NAME --yes."
            )

    def _check_work(self, group: str, topic: str, wanted: Filter) -> None:
        """Raise `TooManyFilters` if all filters of a group would take too long over one message."""
        others = [(_work_of(one.filter), text) for text, one in self.look(group, topic).known.items()]
        work, taken = _work_of(wanted), sum(work for work, _ in others)
        if work + taken <= limits.FILTERS_WORK_MAX or not others:
            return
        shown = "; ".join(f"{shown_filter(text)} ({_shown_ms(one)})" for one, text in others)
        raise TooManyFilters(
            f"{shown_filter(wanted.text)} takes up to {_shown_ms(work)} to judge a message, and the other "
            f"filters of {group} on {topic} take {_shown_ms(taken)}: {shown}. The limit is "
            f"{_shown_ms(limits.FILTERS_WORK_MAX)} for all. Use fewer CONTAINS, the same filters in all "
            "clients of the group, or another group for this one. A filter is forgotten when its clients are "
            f"gone and others of the group were used for {limits.FILTER_IDLE_MS // 60_000} minutes."
        )

    def client_alive(self, client_id: str, now_ms: int) -> None:
        """Take a heartbeat."""
        self._alive_ms.pop(client_id, None)
        self._alive_ms[client_id] = now_ms
        if len(self._alive_ms) > limits.CLIENTS_MAX:
            del self._alive_ms[next(iter(self._alive_ms))]

    def client_gone(self, client_id: str) -> None:
        """Let the filters of a client that has left be idle."""
        self._alive_ms.pop(client_id, None)

    def client_subscribes(self, group: str, topic: str, text: FilterText, client_id: str) -> None:
        """Let a client hold a filter that the group has, until it receives: it says so when it connects."""
        if text in self._texts.get((group, topic), ()):
            self.of(group, topic).hold(text, client_id)

    def idle(self, group: str, topic: str, now_ms: int) -> list[FilterText]:
        """Return the filters of a group on a topic that are to be forgotten."""
        return self.of(group, topic).idle(self._alive_ms, now_ms)

    def add(self, group: str, topic: str, text: FilterText) -> set[int]:
        """Add a filter; return the queues of which what is set aside is to be judged again."""
        texts = self._texts.get((group, topic), {})
        if text not in texts:
            self._texts[group, topic] = texts | {text: None}  # another dictionary: a checkpoint may have this
            self._bytes += _text_bytes(text)
        return self._changed(group, topic)

    def forget(self, group: str, topic: str, texts: Iterable[FilterText]) -> set[int]:
        """Forget filters; return the queues of which what is set aside is to be judged again."""
        known, gone = self._texts.get((group, topic), {}), {*texts}
        self._bytes -= sum(_text_bytes(text) for text in known if text in gone)
        self._texts[group, topic] = {text: None for text in known if text not in gone}
        if not self._texts[group, topic]:
            del self._texts[group, topic]
        return self._changed(group, topic)

    def leave(self, group: str, topic: str) -> None:
        """Forget the filters of a group on a topic, or (empty) on all."""
        for use in [one for one in self._texts if one[0] == group and topic in ("", one[1])]:
            self._bytes -= sum(map(_text_bytes, self._texts.pop(use)))
        for use in [one for one in self._sets if one[0] == group and topic in ("", one[1])]:
            del self._sets[use]

    def freeze(self) -> Any:
        """Return what a snapshot keeps: the texts."""
        return Rows([self._texts.copy()], lambda use, texts: [*use, [list(text) for text in texts]])

    def thaw(self, frozen: Any) -> None:
        """Take a snapshot's part over."""
        for group, topic, texts in frozen:
            for text in texts:
                self.add(group, topic, FilterText(*text))

    def _changed(self, group: str, topic: str) -> set[int]:
        """Make the derived part anew, which keeps uses, clients and clock of the filters that stay."""
        before = self._sets.pop((group, topic), None)
        if before is None:
            return set()
        after = self.of(group, topic)
        after._served_ms, after._heard_ms = before._served_ms, before._heard_ms
        for text, known in after.known.items():
            kept = before.known.get(text)
            known.used_ms = after._served_ms if kept is None else kept.used_ms
            known.is_used = kept is not None and kept.is_used
            known.clients = {} if kept is None else kept.clients
        return before.queue_ids


def shown_filter(text: FilterText) -> str:
    """Return a filter as operators see it: the type, and the expression; a long one cut, with its CRC-32."""
    expression = text.expression
    if len(expression) <= _SHOWN_CHARACTERS:
        return f"{text.type} {expression}"
    return f"{text.type} {expression[:_SHOWN_CHARACTERS]}... ({zlib.crc32(expression.encode()):08x})"


def _parsed(text: FilterText) -> Filter:
    with suppress(IllegalFilter):
        if text.type != SQL:
            return parse_tags(text.expression)
        # Not with the file: its parser takes 90 ms to make, which no command should wait for.
        from consumequeue.sql_filter import parse_sql

        return parse_sql(text.expression)
    return EVERYTHING


def _work_of(one: Filter) -> int:
    return one.work(limits.PROPERTIES_USER_BYTES_MAX)


def _shown_ms(work: int) -> str:
    return f"{work * limits.WORK_NS / 1e6:.1f} ms"


def _text_bytes(text: FilterText) -> int:
    return len(text.expression.encode())
