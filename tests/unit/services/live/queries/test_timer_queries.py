"""Queries that advance in steps find what one look at everything would."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import Message
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import PendingTimer, TimerFilter
from services.broker.timers.timer_views import TimerViews
from services.live.clock import open_clock_offset
from services.live.live_broker import LiveBroker
from services.live.queries import timer_queries
from tests.memory_disk import MemoryDisk
from tidewheel.property_names import TIMER_KEY
from timingwheel import listing
from timingwheel.boundaries import Slot
from timingwheel.listing import Listing

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
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMERS_QUERY_WORK_MAX", 10)
    monkeypatch.setattr(listing, "_FIRST_ROWS", 3)


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


async def write_checkpoint(live: LiveBroker) -> None:
    """Have the timers in memory written to their files."""
    live.core.request_checkpoint()
    await live.wait_until_timers_ready()


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
def test_steps_count_and_page_as_one_look_does(wanted: TimerFilter) -> None:
    async def scenario(live: LiveBroker) -> None:
        expected = everything(live, wanted)
        assert (await timer_queries.count_timers(live, wanted)).total == len(expected)
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
def test_steps_make_the_same_histogram(wanted: TimerFilter, width_ms: int) -> None:
    async def scenario(live: LiveBroker) -> None:
        expected = Counter(
            wanted.from_ms + (one.due_ms - wanted.from_ms) // width_ms * width_ms
            for one in everything(live, wanted)
        )
        assert (await timer_queries.count_by_window(live, wanted, width_ms)).windows == sorted(
            expected.items()
        )

    play(scenario)


def test_others_run_between_the_steps() -> None:
    async def scenario(live: LiveBroker) -> None:
        turns, counted = 0, asyncio.ensure_future(timer_queries.count_timers(live, TimerFilter(tag="t0")))
        while not counted.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > len(DUES_MS) / 15

    play(scenario)


def read_slots(monkeypatch: pytest.MonkeyPatch) -> Counter[Slot]:
    """Return how often each slot is read from now on."""
    found, alive = Counter[Slot](), Listing._alive

    def counted(self: Listing, slot: Slot) -> Any:
        found[slot] += 1
        return alive(self, slot)

    monkeypatch.setattr(Listing, "_alive", counted)
    return found


@pytest.mark.parametrize(
    "wanted", [TimerFilter(key="timer7"), TimerFilter(message_key="k8"), TimerFilter(key="no")]
)
def test_a_search_by_key_reads_each_slot_once(monkeypatch: pytest.MonkeyPatch, wanted: TimerFilter) -> None:
    async def scenario(live: LiveBroker) -> None:
        read = read_slots(monkeypatch)
        await timer_queries.query_page(live, wanted, None, 50)
        assert len(read) > 15
        assert set(read.values()) == {1}

    play(scenario)


def test_a_count_by_due_time_reads_each_slot_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(live: LiveBroker) -> None:
        read = read_slots(monkeypatch)
        found = await timer_queries.count_by_window(live, TimerFilter(from_ms=NOW_MS), 86_400_000)
        assert (found.total, found.counted_until_ms) == (len(DUES_MS), None)
        assert set(read.values()) == {1}

    play(scenario)


@pytest.mark.parametrize("wanted", FILTERS)
def test_a_checkpoint_between_two_steps_hides_no_timer_and_repeats_none(wanted: TimerFilter) -> None:
    async def scenario(live: LiveBroker) -> None:
        expected = [one.message_id for one in everything(live, wanted)]
        ids, steps = list[str](), 0
        async for page in timer_queries.query_pages(live, wanted):
            ids += [one.message_id for one in page.timers]
            steps += 1
            if steps in (1, 3):
                await write_checkpoint(live)
        assert ids == expected

    play(scenario)


@pytest.mark.parametrize("wanted", [one for one in FILTERS if not one.reads_records])
def test_a_checkpoint_between_two_steps_of_a_count_changes_no_number(wanted: TimerFilter) -> None:
    async def scenario(live: LiveBroker) -> None:
        counting = live.query(live.core.timer_views.open_count, wanted)
        counted, end = 0, (0, 0)
        for steps in count():
            due_ms, end = live.query(counting.step)
            counted += len(due_ms)
            if end is None:
                break
            if steps in (1, 3):
                await write_checkpoint(live)
        assert counted == len(everything(live, wanted))

    play(scenario)


def test_a_search_that_takes_long_returns_what_it_found_and_where_it_goes_on() -> None:
    async def scenario(live: LiveBroker) -> None:
        wanted = TimerFilter(properties=(("third", "1"),))
        expected = [one.message_id for one in everything(live, wanted)]
        ids, pages, after = list[str](), 0, None
        while not pages or after is not None:
            page = await timer_queries.query_page(live, wanted, after, 50, seconds_max=0)
            ids, pages, after = [*ids, *(one.message_id for one in page.timers)], pages + 1, page.after
        assert ids == expected
        assert pages > 10

    play(scenario)


def test_a_count_that_takes_long_returns_the_time_up_to_which_it_counted() -> None:
    async def scenario(live: LiveBroker) -> None:
        for wanted in (TimerFilter(properties=(("third", "1"),)), TimerFilter(topic="even")):
            found = await timer_queries.count_by_window(live, wanted, 1, seconds_max=0)
            until_ms = found.counted_until_ms
            assert until_ms is not None
            expected = [one for one in everything(live, wanted) if one.due_ms <= until_ms]
            assert 0 <= found.total <= len(expected)

    play(scenario)


def test_long_lookups_leave_half_of_the_time_for_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looks, look_up = [0.0], list[float](), timer_queries._look_up

    def clock_s() -> float:
        now_s[0] += 0.1
        looks.append(now_s[0])
        return now_s[0]

    async def looked_up(live: LiveBroker, wanted: TimerFilter) -> Any:
        now_s[0] += 10
        return await look_up(live, wanted)

    async def scenario(live: LiveBroker) -> None:
        wanted = TimerFilter(properties=(("third", "1"),))
        for query in (
            timer_queries.query_page(live, wanted, None, 1_000, seconds_max=2),
            timer_queries.count_timers(live, wanted, seconds_max=2),
        ):
            looks.clear()
            await query
            began_s, *steps_s = looks
            assert began_s + 10 < steps_s[0]
            assert 0.9 < steps_s[-1] - steps_s[0] < 1.2

    monkeypatch.setattr(timer_queries, "monotonic", clock_s)
    monkeypatch.setattr(timer_queries, "_look_up", looked_up)
    play(scenario)


def test_a_crowd_of_one_millisecond_is_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMERS_QUERY_WORK_MAX", 14)
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
        assert (await timer_queries.count_timers(live, wanted)).total == 17
        assert (await timer_queries.count_by_window(live, wanted, 10)).windows == [(due_ms, 17)]
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


async def page_ids(
    live: LiveBroker, wanted: TimerFilter, count_max: int, between: Callable[[], Awaitable[None]]
) -> list[str]:
    """Return the ids of all pages, with a call between each two."""
    ids, after = list[str](), None
    for _ in range(2 * len(DUES_MS)):
        page = await timer_queries.query_page(live, wanted, after, count_max)
        ids += [one.message_id for one in page.timers]
        after = page.after
        if after is None:
            return ids
        await between()
    raise AssertionError("the pages do not end")


def play_with_clock(
    scenario: Callable[[LiveBroker, list[int]], Awaitable[None]], *, is_virtual: bool = False
) -> None:
    """Run a scenario on an empty broker, with a clock that it can set."""

    async def run() -> None:
        with ThreadPoolExecutor(1) as writer:
            disk, settings, clock_ms = MemoryDisk(), BrokerSettings(segment_bytes=1 << 23), [NOW_MS]
            kept = open_clock_offset(disk, "virtual") if is_virtual else None
            call_later = asyncio.get_running_loop().call_later
            live = LiveBroker(disk, settings, lambda: clock_ms[0], call_later, writer, kept)
            await scenario(live, clock_ms)
            await live.close()

    asyncio.run(run())


def due_in(number: int, delay_ms: int) -> Message:
    named: Any = {"message_id": str(number), "delivery_ms": NOW_MS + delay_ms, "born_ms": NOW_MS}
    return Message(topic="t", body=b"x", **named)


@pytest.mark.parametrize("delay_ms", [3_000_000, 90_000_000])
def test_a_boundary_that_advances_between_two_steps_hides_no_timer(delay_ms: int) -> None:
    async def scenario(live: LiveBroker, clock_ms: list[int]) -> None:
        await live.send_many([due_in(number, delay_ms + number) for number in range(1_100)])
        wanted = TimerFilter(topic_prefix="t")
        counting, counted = live.query(live.core.timer_views.open_count, wanted), 0
        live.query(counting.step)  # It counts the held timers.
        ids = list[str]()
        async for page in timer_queries.query_pages(live, wanted):
            if not ids:
                clock_ms[0] += delay_ms - 100_000
                live.tick()
            ids += [one.message_id for one in page.timers]
        while True:
            due_ms, end = live.query(counting.step)
            counted += len(due_ms)
            if end is None:
                break
        assert (ids, counted) == ([str(number) for number in range(1_100)], 1_100)

    play_with_clock(scenario)


def test_pages_end_although_timers_are_sorted_behind_their_due_times() -> None:
    async def scenario(live: LiveBroker, clock_ms: list[int]) -> None:
        await live.send(due_in(99, 3_600_000))
        clock_ms[0] = NOW_MS + 3_600_001
        while live.core.timers.pending_count:
            live.tick()
            await asyncio.sleep(0.001)
        clock_ms[0] = NOW_MS
        live.tick()
        await live.send_many([due_in(number, 60_000 + number) for number in range(10)])
        assert len(live.core.timers.near.deviating) == 10
        for wanted in (TimerFilter(), TimerFilter(topic_prefix="t")):
            ids = await page_ids(live, wanted, 3, live.wait_until_all_durable)
            assert ids == [str(number) for number in range(10)]

    play_with_clock(scenario)


@pytest.mark.parametrize("wanted", [TimerFilter(), TimerFilter(topic_prefix="t"), TimerFilter(key="7")])
def test_a_virtual_clock_that_advances_between_two_pages_hides_no_timer(wanted: TimerFilter) -> None:
    async def scenario(live: LiveBroker, _: list[int]) -> None:
        await live.send_many([due_in(number, 86_400_000 + 60_000 * number) for number in range(10)])
        ids = await page_ids(live, wanted, 3, lambda: live.advance(300_000))
        assert ids == (["7"] if wanted.key else [str(number) for number in range(10)])

    play_with_clock(scenario, is_virtual=True)
