"""A virtual clock: events in due order, each durable at its own time, and one border between two times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from commitlog import layout, limits
from commitlog.errors import StoreDamaged
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.spine.errors import IllegalDeliveryTime
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import CheckBackRequest, Delivery, Resolution, SendReceipt
from services.live import advancing
from services.live.clock import StoredClockOffset, open_clock_offset
from services.live.errors import ClockIsReal, IllegalAdvance, ResultUnknown, WrongClock
from services.live.live_broker import LiveBroker, Read
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
MINUTE_MS = 60_000
SETTINGS = BrokerSettings(segment_bytes=1 << 16, invisible_ms_min=0)
Scenario = Callable[[LiveBroker], Awaitable[None]]


class TornClock(MemoryDisk):
    """A disk that fails when a clock is written, on demand."""

    fails = False

    def sync(self, path: str) -> None:
        if self.fails and path == layout.CLOCK:
            raise OSError(5, "input/output error")
        super().sync(path)


def play(scenario: Scenario, disk: MemoryDisk | None = None, is_virtual: bool = True) -> None:
    disk = disk or MemoryDisk()

    async def run() -> None:
        with ThreadPoolExecutor(1) as writer:
            kept = open_clock_offset(disk, "virtual" if is_virtual else "real")
            call_later = asyncio.get_running_loop().call_later
            live = LiveBroker(disk, SETTINGS, lambda: NOW_MS, call_later, writer, kept)
            await asyncio.wait_for(scenario(live), 60)
            await live.close()

    asyncio.run(run())


async def delayed(live: LiveBroker, message_id: str, by_ms: int, **more: object) -> SendReceipt:
    message = Message(
        topic="t",
        body=b"x",
        message_id=message_id,
        delivery_ms=NOW_MS + by_ms,
        born_ms=NOW_MS,
        **more,  # type: ignore[arg-type]
    )
    return await live.send(message)


async def receive(live: LiveBroker, auto_renew: bool = False, client_id: str = "c") -> list[Delivery]:
    return await live.receivers.receive("g", "t", EVERYTHING, 32, 20_000, client_id, auto_renew, 0)


def stored(live: LiveBroker) -> list[tuple[str, int]]:
    """(message id, store time in the broker's time) of topic `t`, in log order."""
    found = [one for queue_id in range(4) for one in live.core.finding.read("t", queue_id, 0, 100)]
    return [
        (one.message.message_id, one.store_ms) for one in sorted(found, key=lambda one: one.physical_offset)
    ]


def test_everything_due_on_the_way_comes_in_due_order_at_its_own_time() -> None:
    async def scenario(live: LiveBroker) -> None:
        for minutes in (20, 5, 30, 31, 5):
            await delayed(live, f"ID-{minutes}-{live.core.end_offset}", minutes * MINUTE_MS)
        await live.advance(30 * MINUTE_MS)
        minutes = [(store_ms - NOW_MS) / MINUTE_MS for _, store_ms in stored(live)]
        assert minutes == [5, 5, 20, 30]
        assert live.core.durable_offset == live.core.end_offset
        assert [timer.due_ms for timer in live.query(live.core.timer_views.pending, "t", 10)] == [
            NOW_MS + MINUTE_MS
        ]

    play(scenario)


def test_more_than_one_slice_is_due_at_the_arrival() -> None:
    async def scenario(live: LiveBroker) -> None:
        count = limits.DELIVERIES_PER_TICK_MAX + 50
        await asyncio.gather(*(delayed(live, f"ID-{n}", MINUTE_MS) for n in range(count)))
        await live.advance(MINUTE_MS)
        assert live.core.gauges().pending_timers == 0

    play(scenario)


def test_callers_stay_in_real_time() -> None:
    async def scenario(live: LiveBroker) -> None:
        await live.advance(10 * MINUTE_MS)
        receipt = await delayed(live, "ID-1", MINUTE_MS)
        assert await receive(live) == []
        (waiting,) = live.query(live.core.timer_views.pending, "", 10)
        assert (waiting.message_id, waiting.due_ms) == ("ID-1", NOW_MS + MINUTE_MS)
        await live.advance(MINUTE_MS)
        (delivery,) = await receive(live)
        assert delivery.message.born_ms == NOW_MS - MINUTE_MS
        assert delivery.message.delivery_ms == delivery.store_ms == NOW_MS
        assert (await live.call(live.core.timers.recall, "t", receipt.recall_handle)).ended_ms == NOW_MS
        assert live.now_ms() == NOW_MS
        assert live.clock.now_ms() == NOW_MS + 11 * MINUTE_MS

    play(scenario)


def test_a_negative_time_stays_refused_however_far_the_clock_is() -> None:
    async def scenario(live: LiveBroker) -> None:
        await live.advance(MINUTE_MS)
        with pytest.raises(IllegalDeliveryTime):
            await delayed(live, "ID-1", -NOW_MS - 1)

    play(scenario)


def test_leases_of_clients_that_are_there_are_renewed_and_others_run_out() -> None:
    async def scenario(live: LiveBroker) -> None:
        live.set_present_clients(lambda: ["there"])
        for client_id in ("there", "away"):
            await live.send(Message(topic="t", body=b"x", message_id=client_id))
            assert len(await receive(live, auto_renew=True, client_id=client_id)) == 1
        await live.advance(30 * MINUTE_MS)
        assert [one.message.message_id for one in await receive(live)] == ["away"]

    play(scenario)


def test_a_producer_that_is_asked_may_answer_before_time_goes_on() -> None:
    async def scenario(live: LiveBroker) -> None:
        asked: list[str] = []

        async def answer(question: CheckBackRequest) -> None:
            await asyncio.sleep(0.01)
            await live.call(
                live.core.transactions.end, "t", question.transaction_id, "ID-1", Resolution.COMMIT
            )
            live.record_answer(question.transaction_id)

        answers: list[asyncio.Task[None]] = []

        def ask(question: CheckBackRequest, read: Read) -> str:
            asked.append(question.transaction_id)
            answers.append(asyncio.ensure_future(answer(question)))
            return "producer"

        live.add_check_back_sender(ask)
        await live.send(Message(topic="t", body=b"x", message_id="ID-1", transactional=True))
        await live.advance(120 * MINUTE_MS)
        assert len(asked) == 1
        assert stored(live) == [("ID-1", NOW_MS + limits.CHECK_IMMUNITY_MS)]

    play(scenario)


def test_a_producer_that_never_answers_holds_time_up_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advancing, "ANSWER_SECONDS", 0.01)

    async def scenario(live: LiveBroker) -> None:
        live.add_check_back_sender(lambda question, read: "producer")
        await live.send(Message(topic="t", body=b"x", message_id="ID-1", transactional=True))
        await live.advance(5 * 60 * MINUTE_MS)
        assert live.core.statistics.expired["t"] == 1

    play(scenario)


def test_a_half_with_nobody_to_ask_does_not_hold_time_up() -> None:
    async def scenario(live: LiveBroker) -> None:
        questions: list[CheckBackRequest] = []

        def ask(question: CheckBackRequest, read: Read) -> str:
            questions.append(question)
            return ""

        live.add_check_back_sender(ask)
        await live.send(Message(topic="t", body=b"x", message_id="ID-1", transactional=True))
        await live.advance(60 * MINUTE_MS)
        assert len(questions) == 1
        await live.advance(60 * MINUTE_MS)
        assert len(questions) == 1, "nobody came, so nobody is looked for"
        live.send_check_backs("other")
        live.send_check_backs("t")
        await live.advance(1)
        assert len(questions) == 2

    play(scenario)


def test_an_advance_that_begins_during_another_one_comes_after_it() -> None:
    async def scenario(live: LiveBroker) -> None:
        await delayed(live, "ID-1", MINUTE_MS)
        await delayed(live, "ID-2", 3 * MINUTE_MS)
        await asyncio.gather(live.advance(2 * MINUTE_MS), live.advance(2 * MINUTE_MS))
        assert live.clock.offset_ms == 4 * MINUTE_MS
        assert [store_ms - NOW_MS for _, store_ms in stored(live)] == [MINUTE_MS, 3 * MINUTE_MS]

    play(scenario)


def test_the_offset_outlives_a_power_cut() -> None:
    disk = MemoryDisk()

    async def first(live: LiveBroker) -> None:
        await delayed(live, "ID-1", MINUTE_MS)
        await delayed(live, "ID-2", 90 * MINUTE_MS)
        await live.advance(30 * MINUTE_MS)
        await live.advance(30 * MINUTE_MS)

    async def second(live: LiveBroker) -> None:
        assert live.clock.offset_ms == 60 * MINUTE_MS
        assert [timer.due_ms for timer in live.query(live.core.timer_views.pending, "t", 9)] == [
            NOW_MS + 30 * MINUTE_MS
        ]

    play(first, disk)
    play(second, disk)


def test_a_torn_line_of_the_clock_costs_nothing_and_two_are_refused() -> None:
    disk = MemoryDisk()
    kept = open_clock_offset(disk, "virtual")
    assert isinstance(kept, StoredClockOffset)
    for offset_ms in (1_000, 2_000):
        kept.offset_ms = offset_ms
        kept.keep()
    disk.write(layout.CLOCK, 0, b"torn")
    assert layout.read_clock(disk) == 2_000
    disk.write(layout.CLOCK, 32, b"torn")
    with pytest.raises(StoreDamaged, match="clock cannot be read"):
        open_clock_offset(disk, "virtual")


def test_a_clock_that_cannot_be_written_ends_the_advance() -> None:
    disk = TornClock()

    async def scenario(live: LiveBroker) -> None:
        await delayed(live, "ID-1", MINUTE_MS)
        disk.fails = True
        with pytest.raises(ResultUnknown, match="Writing the clock failed"):
            await live.advance(2 * MINUTE_MS)
        disk.fails = False
        await live.advance(2 * MINUTE_MS)
        assert stored(live) == [("ID-1", NOW_MS + MINUTE_MS)]

    play(scenario, disk)


def test_a_store_keeps_its_kind_of_clock() -> None:
    real, virtual = MemoryDisk(), MemoryDisk()

    async def store_one(live: LiveBroker) -> None:
        await live.send(Message(topic="t", body=b"x", message_id="ID-1"))

    play(store_one, real, is_virtual=False)
    play(store_one, virtual)
    with pytest.raises(WrongClock, match="choose an empty folder"):
        open_clock_offset(real, "virtual")
    with pytest.raises(WrongClock, match="serve it with --clock virtual"):
        open_clock_offset(virtual, "real")


def test_a_store_that_nothing_was_stored_in_may_become_virtual() -> None:
    async def nothing(live: LiveBroker) -> None:
        return None

    disk = MemoryDisk()
    play(nothing, disk, is_virtual=False)
    play(nothing, disk)


@pytest.mark.parametrize("by_ms", [-1, limits.CLOCK_OFFSET_MS_MAX + 1])
def test_absurd_spans_are_refused_and_move_nothing(by_ms: int) -> None:
    async def scenario(live: LiveBroker) -> None:
        with pytest.raises(IllegalAdvance):
            await live.advance(by_ms)
        assert live.clock.offset_ms == 0

    play(scenario)


def test_real_time_is_not_advanced() -> None:
    async def scenario(live: LiveBroker) -> None:
        with pytest.raises(ClockIsReal, match="--clock virtual"):
            await live.advance(1)

    play(scenario, is_virtual=False)
