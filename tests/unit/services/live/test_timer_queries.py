"""Looks that are cut into pieces find what one look at everything would."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from commitlog import limits
from commitlog.message import Message
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import PendingTimer, TimerFilter
from services.broker.timers.timer_views import TimerViews
from services.live import timer_queries
from services.live.live_broker import LiveBroker
from tests.memory_disk import MemoryDisk
from tidewheel.property_names import TIMER_KEY

NOW_MS = 1_763_700_000_000
DUES_MS = [
    *(NOW_MS + 60_000 + number for number in range(40)),
    *[NOW_MS + 3_600_000] * 30,
    *(NOW_MS + 86_400_000 * number for number in range(1, 20)),
    NOW_MS + limits.DELAY_MS_MAX,
]
"""Dense, many in one millisecond, sparse, and as far as it goes."""
PARTS = {"third": 3, "fifth": 5}
FILTERS = [
    TimerFilter(),
    TimerFilter(topic="even"),
    TimerFilter(tag="t0"),
    TimerFilter(topic_prefix="o", tag="t1"),
    TimerFilter(key="k7"),
    TimerFilter(topic="even", from_ms=NOW_MS + 60_010, until_ms=NOW_MS + 3_600_000),
    TimerFilter(tag="t2", from_ms=NOW_MS + 3_600_000),
    TimerFilter(tag="none"),
    *(TimerFilter(key=f"timer{number}") for number in (6, 7, 90)),
    TimerFilter(topic="even", key="timer6"),
    TimerFilter(topic="even", key="timer7"),
    TimerFilter(key="9", from_ms=NOW_MS + 60_000),
    TimerFilter(message_key="k7"),
    TimerFilter(topic="even", message_key="k9"),
    TimerFilter(properties=(("third", "1"),)),
    TimerFilter(topic="odd", properties=(("third", "1"), ("fifth", "2"))),
    TimerFilter(from_ms=NOW_MS + 3_600_000, until_ms=NOW_MS + 3_600_001),
]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIMERS_LOOKED_AT_FIRST", "TIMERS_LOOKED_AT_MIN", "TIMERS_LOOKED_AT_MAX"):
        monkeypatch.setattr(limits, name, 5)


def play(scenario: Callable[[LiveBroker], Awaitable[None]]) -> None:
    """Run a scenario on a broker that has half of the timers in partitions on disk, half still in memory."""

    async def run() -> None:
        with ThreadPoolExecutor(1) as writer:
            disk, settings = MemoryDisk(), BrokerSettings(segment_bytes=1 << 23)
            call_later = asyncio.get_running_loop().call_later
            before = LiveBroker(disk, settings, lambda: NOW_MS, call_later, writer)
            await before.send_many([timer(number) for number in range(0, len(DUES_MS), 2)])
            await before.close()
            live = LiveBroker(disk, settings, lambda: NOW_MS, call_later, writer)
            await live.send_many([timer(number) for number in range(1, len(DUES_MS), 2)])
            assert len(everything(live, TimerFilter())) == len(DUES_MS)
            await scenario(live)
            await live.close()

    asyncio.run(run())


def timer(number: int) -> Message:
    return Message(
        topic="odd" if number % 3 else "even",
        body=b"x",
        message_id=str(number),
        tag=f"t{number % 4}",
        keys=(f"k{number}",),
        properties={name: str(number % part) for name, part in PARTS.items()} | {TIMER_KEY: f"timer{number}"},
        delivery_ms=DUES_MS[number],
        born_ms=NOW_MS,
    )


def everything(live: LiveBroker, wanted: TimerFilter) -> list[PendingTimer]:
    """Return what one look at all timers finds, chosen here."""
    return [
        one
        for one in live.timers(TimerFilter(), None, 1_000).timers
        if wanted.from_ms <= one.due_ms < wanted.until_ms
        and wanted.topic in ("", one.topic)
        and one.topic.startswith(wanted.topic_prefix)
        and wanted.key in ("", *one.keys, one.timer_key, one.message_id)
        and wanted.message_key in ("", *one.keys)
        and all(value == str(int(one.message_id) % PARTS[name]) for name, value in wanted.properties)
        and wanted.tag in ("", one.tag)
    ]


@pytest.mark.parametrize("wanted", FILTERS)
def test_pieces_count_and_page_as_one_look_does(wanted: TimerFilter) -> None:
    async def scenario(live: LiveBroker) -> None:
        expected = everything(live, wanted)
        assert await timer_queries.count_timers(live, wanted) == len(expected)
        for count_max in (1, 4, 30, 1_000):
            seen, after = [], None
            while True:
                page = await timer_queries.query_page(live, wanted, after, count_max)
                assert len(page.timers) == count_max or page.after is None
                seen += page.timers
                after = page.after
                if after is None:
                    break
                assert len(page.timers) == count_max
            assert [one.message_id for one in seen] == [one.message_id for one in expected], count_max

    play(scenario)


def test_a_key_is_found_without_decoding_the_other_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(live: LiveBroker) -> None:
        read, decoded = TimerViews.read_timer, []

        def count(views: TimerViews, candidate: Any) -> PendingTimer:
            decoded.append(candidate)
            return read(views, candidate)

        monkeypatch.setattr(TimerViews, "read_timer", count)
        for number in (6, 7):  # on disk, and in memory
            page = await timer_queries.query_page(live, TimerFilter(key=f"timer{number}"), None, 50)
            assert [one.message_id for one in page.timers] == [str(number)]
        assert len(decoded) < 20, "of 90; timer7 is also a part of timer71 and others"

    play(scenario)


@pytest.mark.parametrize("wanted", FILTERS)
@pytest.mark.parametrize("width_ms", [1, 1_000, 86_400_000])
def test_pieces_make_the_same_histogram(wanted: TimerFilter, width_ms: int) -> None:
    async def scenario(live: LiveBroker) -> None:
        expected = Counter(
            wanted.from_ms + (one.due_ms - wanted.from_ms) // width_ms * width_ms
            for one in everything(live, wanted)
        )
        assert await timer_queries.count_by_window(live, wanted, width_ms) == sorted(expected.items())

    play(scenario)


def test_others_run_between_the_pieces() -> None:
    async def scenario(live: LiveBroker) -> None:
        turns, counted = 0, asyncio.ensure_future(timer_queries.count_timers(live, TimerFilter(tag="t0")))
        while not counted.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > len(DUES_MS) / 3 / limits.TIMERS_LOOKED_AT_MAX

    play(scenario)


def test_a_piece_holds_few_timers_unless_it_is_a_millisecond() -> None:
    async def scenario(live: LiveBroker) -> None:
        until_ms = 0
        async for piece in timer_queries.split_window(live, TimerFilter(tag="t0")):
            assert piece.from_ms >= until_ms
            assert piece.tag == "t0"
            until_ms = piece.until_ms
            held = live.query(live.core.timer_views.count, replace(piece, tag=""))
            assert held <= limits.TIMERS_LOOKED_AT_MAX or until_ms - piece.from_ms == 1

    play(scenario)


def test_a_crowd_of_one_millisecond_is_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMERS_LOOK_WORK_MAX", 14)
    looked = [0]
    look = TimerViews.read_timer

    def counted(self: TimerViews, candidate: Any) -> Any:
        looked[-1] += 1
        return look(self, candidate)

    monkeypatch.setattr(TimerViews, "read_timer", counted)

    async def scenario(live: LiveBroker) -> None:
        due_ms = NOW_MS + 90_000_000
        for number in range(50):
            tag = "wanted" if number % 3 == 0 else "other"
            named: Any = {"message_id": f"crowd{number}", "delivery_ms": due_ms, "tag": tag}
            await live.send(Message(topic="crowd", body=b"x", **named))
        query = live.query
        looked[:] = [0]

        def apart(verb: Any, *arguments: Any) -> Any:
            looked.append(0)
            return query(verb, *arguments)

        monkeypatch.setattr(live, "query", apart)
        wanted = TimerFilter(topic="crowd", tag="wanted", from_ms=due_ms, until_ms=due_ms + 1)
        assert await timer_queries.count_timers(live, wanted) == 17
        assert await timer_queries.count_by_window(live, wanted, 10) == [(due_ms, 17)]
        ids, after = [], None
        while True:
            page = await timer_queries.query_page(live, wanted, after, 5)
            ids += [one.message_id for one in page.timers]
            after = page.after
            if after is None:
                break
        assert ids == [f"crowd{number}" for number in range(0, 50, 3)]
        for whole in (TimerFilter(topic="crowd"), TimerFilter(from_ms=due_ms)):
            page = await timer_queries.query_page(live, whole, None, 50)
            assert [one.message_id for one in page.timers] == [f"crowd{number}" for number in range(50)]
        assert 0 < max(looked) <= 7

    play(scenario)
