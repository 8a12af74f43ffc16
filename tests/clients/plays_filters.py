"""What clients of one consumer group with different filters get: each row of the table of docs/filters.md.

Two clients of one library, each a process of its own, ask one topic with a filter each and acknowledge what
they get. Messages have one of four tags and a number. A row ends with a `Tally`: what was sent, what some
filter of the group matched, and what came to whom. Nothing may be lost, come twice, or come to a client that
did not ask for it; what no client took waits, and the group's `filters` show it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from threading import Event, Lock, Thread
from typing import Any, Final
from urllib.error import HTTPError

import pytest

from tests.clients.official import Refused, SimpleConsumer
from tests.clients.play import ARRIVE_SECONDS, Play, until
from tests.clients.process_client import ProcessClient

TAGS: Final = ("red", "blue", "green", "white")
SENT: Final = 40
AWAIT_SECONDS: Final = 1
FILTERS_MAX: Final = 8
QUIET_SECONDS: Final = 4.0
"""How long nothing comes before what has not come counts as lost."""


@dataclass(frozen=True, slots=True)
class Asks:
    """A filter as a client writes it, and the numbers of the messages that it matches."""

    expression: str
    matches: Callable[[int], bool]
    is_sql: bool = False


RED: Final = Asks("red", lambda number: number % 4 == 0)
BLUE: Final = Asks("blue", lambda number: number % 4 == 1)
RED_OR_BLUE: Final = Asks("red || blue", lambda number: number % 4 < 2)
ALL: Final = Asks("*", lambda number: True)
LOW: Final = Asks("n < 30", lambda number: number < 30, is_sql=True)
HIGH: Final = Asks("n >= 20", lambda number: number >= 20, is_sql=True)
SQL_BLUE: Final = Asks("TAGS = 'blue'", BLUE.matches, is_sql=True)


@dataclass
class Tally:
    """What became of the messages of a row."""

    sent: int = 0
    wanted: set[int] = field(default_factory=set)
    came: list[tuple[Asks, int]] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)

    def lost(self) -> set[int]:
        """The messages that some filter matched and no client got."""
        return self.wanted - {number for _, number in self.came}

    def judge(self, waiting: int = 0, may_repeat: bool = False) -> dict[str, Any]:
        """Hold it to what was promised; `waiting` messages are shown as waiting. Returns the figures.

        `may_repeat`: an acknowledgement may be lost with the broker, and its message come twice.
        """
        times = Counter(number for _, number in self.came)
        shown = {
            "sent": self.sent,
            "wanted": len(self.wanted),
            "came": len(times),
            "lost": len(self.lost()) - waiting,
            "twice": sum(times.values()) - len(times),
            "waiting": self.waiting,
        }
        assert shown["lost"] == 0, f"{shown}: {sorted(self.lost())}"
        assert may_repeat or shown["twice"] == 0, f"{shown}: {times.most_common(5)}"
        assert not [number for asks, number in self.came if not asks.matches(number)], "not asked for"
        assert times.keys() <= self.wanted
        return shown


class Reader(Thread):
    """Receives and acknowledges until it is told to stop; what is refused is asked for again."""

    def __init__(self, consumer: SimpleConsumer, asks: Asks, pair: Pair) -> None:
        super().__init__(daemon=True)
        self._consumer, self._asks, self._pair = consumer, asks, pair
        self.over = Event()
        self.refusals: list[str] = []

    def run(self) -> None:
        while not self.over.is_set():
            try:
                for one in self._consumer.receive(8, 60):
                    self._pair.note(self._asks, int(one.body))  # before others of its message group come
                    self._consumer.ack(one)
            except Refused as refusal:
                self.refusals.append(str(refusal))
                self.over.wait(0.1)

    def stop(self) -> None:
        """Stop; the receive under way ends first."""
        self.over.set()
        self.join(ARRIVE_SECONDS)
        assert not self.is_alive(), "a receive does not end"


class Pair:
    """Clients of one library and one group, each in its own process, and what has come to them."""

    def __init__(self, launch: Callable[[], ProcessClient], broker: Any) -> None:
        self.launch, self.clients = launch, [launch(), launch()]
        self.use(broker)

    def use(self, broker: Any) -> None:
        """Begin a row: with names of its own."""
        self.broker, self.play, self.tally = broker, Play(self.clients[0], broker), Tally()
        self._numbers, self._lock, self._came_s = count(), Lock(), time.monotonic()
        self._message_groups: defaultdict[str, list[int]] = defaultdict(list)
        self._readers: dict[int, Reader] = {}

    def read(self, place: int, asks: Asks) -> None:
        """Let a client ask with a filter, and receive; returns when the broker knows the filter."""
        self.go_on(place, asks, self.ask(self.clients[place], asks))
        until(lambda: self.receiving() == len(self._readers))

    def go_on(self, place: int, asks: Asks, consumer: SimpleConsumer) -> None:
        """Let a consumer receive from now on, in the place of the last one of its client."""
        self.stop(place)
        self._readers[place] = Reader(consumer, asks, self)
        self._readers[place].start()

    def stop(self, place: int) -> None:
        """Let a client receive no longer."""
        if place in self._readers:
            self._readers.pop(place).stop()

    def ask(self, client: ProcessClient, asks: Asks) -> SimpleConsumer:
        """Start a simple consumer with a filter, which is known from its first receive on."""
        names = self.play.topic, self.play.group
        return client.simple(*names, asks.expression, is_sql=asks.is_sql, await_seconds=AWAIT_SECONDS)

    def read_backlog(self, one: Asks, other: Asks, **sent: int) -> None:
        """Let both clients ask, and receive when all was sent: then each comes upon the other's messages."""
        asked = (one, other)
        both = [self.ask(client, asks) for client, asks in zip(self.clients, asked, strict=True)]
        for receives in [consumer.receiving() for consumer in both]:
            assert receives.result(ARRIVE_SECONDS) == []
        self.send(*asked, **sent)
        for place, consumer in enumerate(both):
            self.go_on(place, asked[place], consumer)

    def send(self, *asked: Asks, sent: int = SENT, message_groups: int = 0) -> None:
        """Send messages of all tags, of which those are wanted that one of the filters matches."""
        for _ in range(sent):
            number = next(self._numbers)
            attributes = {"message_group": f"m{number // 4 % message_groups}"} if message_groups else {}
            if any(asks.matches(number) for asks in asked):
                self.tally.wanted.add(number)
                self._message_groups[attributes.get("message_group", "")].append(number)
            self.send_one(number, **attributes)
        self.tally.sent += sent

    def send_one(self, number: int, **attributes: Any) -> None:
        """Send one message; a send that is refused, since the broker is away, is sent anew."""
        ends = time.monotonic() + ARRIVE_SECONDS
        given = {"tag": TAGS[number % 4], "properties": {"n": str(number)}} | attributes
        while True:
            try:
                self.play.client.send(self.play.topic, str(number), **given)
                return
            except Refused:
                assert time.monotonic() < ends
                time.sleep(0.2)

    def note(self, asks: Asks, number: int) -> None:
        """Note that a message came to a client with this filter."""
        with self._lock:
            self.tally.came.append((asks, number))
            self._came_s = time.monotonic()

    def drain(self, but: int = 0) -> None:
        """Wait until all but so many of the messages that are wanted came, or nothing comes any more."""
        self._came_s = time.monotonic()
        while len(self.tally.lost()) > but and time.monotonic() - self._came_s < QUIET_SECONDS:
            time.sleep(0.02)

    def end(self, waiting: int = 0, may_repeat: bool = False) -> dict[str, Any]:
        """End the row; returns its figures."""
        self.drain(waiting)
        self.tally.waiting = self.waiting()
        shown = self.tally.judge(waiting, may_repeat)
        until(lambda: self.lag() == waiting)  # acknowledgements are under way, and what no filter matches
        for place in list(self._readers):
            self.stop(place)
        return self.tally.judge(waiting, may_repeat) | shown

    def group(self) -> dict[str, Any]:
        """What the broker says of the group."""
        return dict(self.play.ask("GET", f"groups/{self.play.group}"))

    def waiting(self) -> dict[str, int]:
        """How many messages wait for which filter."""
        filters = self.group().get("filters", ())
        return {f"{one['type']} {one['expression']}": one["waiting"] for one in filters if one["waiting"]}

    def receiving(self) -> int:
        """How many clients of the group wait for messages."""
        with suppress(HTTPError):  # before its first receive the group is not known
            consumers = self.play.ask("GET", f"groups/{self.play.group}/clients")["consumers"]
            return sum(1 for one in consumers if one["receives"])
        return 0

    def lag(self) -> int:
        """How many messages the group has not done, once acknowledgements have arrived."""
        return int(self.group()["lag"])

    def in_order(self) -> bool:
        """Whether the messages of each message group came in the order in which they were sent."""
        came = [number for _, number in self.tally.came]
        return all([one for one in came if one in sent] == sent for sent in self._message_groups.values())

    def close(self) -> None:
        """End what the row has started."""
        for reader in self._readers.values():
            reader.over.set()
        for client in self.clients:
            with suppress(Refused):
                client.close()


def share(pair: Pair, one: Asks, other: Asks) -> dict[str, Any]:
    """Two clients with a filter each share what is sent."""
    pair.read_backlog(one, other)
    return pair.end()


def outlive(pair: Pair, disturb: Callable[[], None]) -> dict[str, Any]:
    """While one of two clients is away, another broker or leader serves: it knows the filter of both."""
    pair.read(0, RED)
    pair.read(1, BLUE)
    pair.send(RED, BLUE)
    pair.drain()
    pair.stop(1)
    disturb()
    pair.send(RED, BLUE)
    pair.drain(but=SENT // 4)
    until(lambda: pair.waiting() == {"TAG blue": SENT // 4})
    pair.read(1, BLUE)
    return pair.end(may_repeat=True)


def two_tags(pair: Pair) -> dict[str, Any]:
    return share(pair, RED, BLUE)


def a_tag_and_all(pair: Pair) -> dict[str, Any]:
    return share(pair, RED, ALL)


def two_sql_filters(pair: Pair) -> dict[str, Any]:
    return share(pair, LOW, HIGH)


def a_tag_and_an_sql_filter(pair: Pair) -> dict[str, Any]:
    return share(pair, RED, SQL_BLUE)


def a_filter_is_widened_in_a_rolling_update(pair: Pair) -> dict[str, Any]:
    pair.read(0, RED)
    pair.send(RED)
    pair.drain()
    pair.read(1, RED_OR_BLUE)
    pair.send(RED, RED_OR_BLUE)
    pair.drain()
    pair.stop(0)
    pair.send(RED_OR_BLUE)
    return pair.end()


def a_filter_is_narrowed_in_a_rolling_update(pair: Pair) -> dict[str, Any]:
    """What only the old version asks for waits when that is gone, and comes when one of it is back."""
    pair.read(0, RED_OR_BLUE)
    pair.send(RED_OR_BLUE)
    pair.read(1, RED)
    pair.send(RED_OR_BLUE)
    pair.drain()
    pair.stop(0)
    pair.send(RED_OR_BLUE)
    pair.drain(but=SENT // 4)
    until(lambda: pair.waiting() == {"TAG blue||red": SENT // 4})
    pair.read(0, RED_OR_BLUE)
    return pair.end()


def a_message_group_keeps_its_order_across_filters(pair: Pair) -> dict[str, Any]:
    pair.play.create_topic("FIFO")
    pair.read_backlog(RED, BLUE, message_groups=3)
    shown = pair.end()
    assert pair.in_order(), pair.tally.came
    return shown


def push_consumers_share(pair: Pair) -> dict[str, Any]:
    asked = (RED, BLUE)
    names = pair.play.topic, pair.play.group
    pair.play.create_topic("MIXED")
    started = [
        client.push(*names, None, asks.expression) for client, asks in zip(pair.clients, asked, strict=True)
    ]
    until(lambda: pair.receiving() == len(asked))
    pair.send(*asked)
    seen: set[tuple[Asks, int]] = set()
    ends = time.monotonic() + ARRIVE_SECONDS
    while len(seen) < len(pair.tally.wanted) and time.monotonic() < ends:
        for consumer, asks in zip(started, asked, strict=True):
            seen |= {(asks, int(one.body)) for one in consumer.seen()}
        time.sleep(0.1)
    pair.tally.came += seen
    until(lambda: pair.lag() == 0)
    return pair.end()


def a_client_never_comes_back(pair: Pair) -> dict[str, Any]:
    """What only its filter matches waits, and is shown; all else comes."""
    gone = pair.launch()
    pair.read(0, RED)
    pair.ask(gone, BLUE).receive()
    gone.kill()
    pair.send(RED, BLUE)
    pair.drain(but=SENT // 4)
    until(lambda: pair.waiting() == {"TAG blue": SENT // 4})
    return pair.end(waiting=SENT // 4)


def a_ninth_filter_is_refused(pair: Pair) -> dict[str, Any]:
    """The client says which filters there are; the others go on."""
    pair.play.create_topic("MIXED")
    asked = [Asks(f"tag{number}", lambda number: False) for number in range(7)]
    for one in [pair.ask(pair.clients[1], asks).receiving() for asks in asked]:
        one.result(ARRIVE_SECONDS)
    pair.read(0, RED)
    consumer = pair.ask(pair.clients[1], BLUE)
    with pytest.raises(Refused, match=r"has 8 filters on .*: TAG tag"):
        consumer.receive()
    assert len(pair.group()["filters"]) == FILTERS_MAX
    pair.send(RED)
    return pair.end()


def the_same_words_as_tag_and_as_sql_are_two_filters(pair: Pair) -> dict[str, Any]:
    words = "n IS NOT NULL"
    return share(pair, Asks(words, lambda number: False), Asks(words, ALL.matches, is_sql=True))


FILTERS: Final[dict[str, Callable[[Pair], dict[str, Any]]]] = {
    "tags": two_tags,
    "tag and *": a_tag_and_all,
    "SQL": two_sql_filters,
    "tag and SQL": a_tag_and_an_sql_filter,
    "widened": a_filter_is_widened_in_a_rolling_update,
    "narrowed": a_filter_is_narrowed_in_a_rolling_update,
    "FIFO": a_message_group_keeps_its_order_across_filters,
    "push": push_consumers_share,
    "never back": a_client_never_comes_back,
    "ninth": a_ninth_filter_is_refused,
    "same words": the_same_words_as_tag_and_as_sql_are_two_filters,
}
"""The rows in which the broker stays."""
