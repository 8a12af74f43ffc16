"""Polls for check-backs: asked in turn, while they have room, beside producers that have a stream."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from commitlog import limits
from commitlog.records.message import Message
from services.broker.spine.values import CheckBackRequest
from services.live.clients.check_back_polls import CheckBackPolls
from services.live.clients.long_polls import LongPolls
from services.live.live_broker import LiveBroker
from tests.unit.services.live.test_advancing import MINUTE_MS, play


class Half:
    """A half of 100 bytes, and how often it was read."""

    def __init__(self) -> None:
        self.read_count = 0

    def read(self) -> Message | None:
        self.read_count += 1
        return Message(topic="t", body=b"x" * 100, message_id="A")


def question(topic: str = "t") -> CheckBackRequest:
    return CheckBackRequest("ID", topic, 0)


def test_polls_of_a_topic_are_asked_in_turn_and_leave_when_they_are_full() -> None:
    came: list[str] = []
    polls, half = CheckBackPolls(LongPolls(), came.append), Half()
    with polls.open_poll("a", ["t", "u"], 1) as first, polls.open_poll("b", ["t"], 2) as second:
        assert came == ["t", "u"], "the second found one with room beside it"
        asked = [polls.add_check_back(question(), half.read) for _ in range(4)]
        assert asked == ["a", "b", "b", ""]
        assert polls.add_check_back(question("u"), half.read) == "", "the first is full, whatever the topic"
        assert half.read_count == 3, "a message is read only for a poll that takes it"
        assert (len(first.halves), len(second.halves)) == (1, 2)
        assert polls.producer_views() == []
        with polls.open_poll("c", ["t"], 1):
            assert came == ["t", "u", "t"]
            assert [(one.topic, one.client_id) for one in polls.producer_views("t")] == [("t", "c")]
    assert polls.add_check_back(question(), half.read) == ""


def test_a_half_that_damage_has_taken_is_asked_of_no_poll() -> None:
    polls = CheckBackPolls(LongPolls(), lambda topic: None)
    with polls.open_poll("a", ["t"], 1) as poll:
        assert polls.add_check_back(question(), lambda: None) == ""
        assert poll.has_room


def test_what_all_polls_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMMANDS_WAITING_ALL_BYTES_MAX", 150)
    polls, half = CheckBackPolls(LongPolls(), lambda topic: None), Half()
    with ExitStack() as stack:
        opened = [stack.enter_context(polls.open_poll(name, ["t"], 9)) for name in "abc"]
        assert [polls.add_check_back(question(), half.read) for _ in range(3)] == ["a", "b", ""]
        polls.set_held_bytes(opened[0], 0)
        assert polls.add_check_back(question(), half.read) == "c"


def test_a_half_that_found_no_room_is_asked_about_when_there_is_room_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "COMMANDS_WAITING_ALL_BYTES_MAX", 150)
    came: list[str] = []
    polls, half = CheckBackPolls(LongPolls(), came.append), Half()
    with ExitStack() as stack:
        opened = [stack.enter_context(polls.open_poll(name, ["t"], 1)) for name in "abc"]
        assert [polls.add_check_back(question(), half.read) for _ in range(3)] == ["a", "b", ""]
        assert came == ["t"]
        polls.set_held_bytes(opened[0], 0)
        assert came == ["t", "t"], "polls that overlap are no reason to wait for a first one"
        polls.set_held_bytes(opened[1], 0)
        assert came == ["t", "t"], "once"


def test_a_half_that_found_no_room_waits_for_the_next_poll_if_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "COMMANDS_WAITING_ALL_BYTES_MAX", 50)
    came: list[str] = []
    polls, half = CheckBackPolls(LongPolls(), came.append), Half()
    with polls.open_poll("a", ["t"], 9) as poll:
        assert [polls.add_check_back(question(), half.read) for _ in range(2)] == ["a", ""]
    polls.set_held_bytes(poll, 0)
    assert came == ["t"]
    with polls.open_poll("b", ["t"], 9):
        assert came == ["t", "t"]


def test_overlapping_polls_take_all_halves_though_room_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMMANDS_WAITING_ALL_BYTES_MAX", 1)

    async def scenario(live: LiveBroker) -> None:
        for number in range(6):
            await live.send(Message(topic="t", body=b"x", message_id=f"A{number}", transactional=True))
        polls, found = live.check_back_polls, set[str]()
        with polls.open_poll("idle", ["t"], 10) as idle:
            advancing = asyncio.ensure_future(live.advance(MINUTE_MS // 6))
            while len(found) < 6:
                await polls.wait(idle, 0.01)
                found |= {half.transaction_id for half in idle.halves}
                for half in idle.halves:
                    live.record_answer(half.transaction_id)
                idle.halves.clear()
                polls.set_held_bytes(idle, 0)
            await advancing

    play(scenario)


def test_a_poll_is_woken_by_its_first_question() -> None:
    async def scenario() -> None:
        polls, half = CheckBackPolls(LongPolls(), lambda topic: None), Half()
        with polls.open_poll("a", ["t"], 2) as poll:
            waiting = asyncio.ensure_future(polls.wait(poll, 20))
            await asyncio.sleep(0)
            assert [polls.add_check_back(question(), half.read) for _ in range(2)] == ["a", "a"]
            await waiting
            assert len(poll.halves) == 2
            await polls.wait(poll, 20)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_producers_with_a_stream_and_polls_are_asked_in_turn() -> None:
    async def scenario(live: LiveBroker) -> None:
        for number in range(6):
            await live.send(Message(topic="t", body=b"x", message_id=f"A{number}", transactional=True))
        streams: list[str] = []

        def ask(question: CheckBackRequest, read: object) -> str:
            streams.append(question.transaction_id)
            live.record_answer(question.transaction_id)
            return "stream"

        live.add_check_back_sender(ask)
        with live.check_back_polls.open_poll("poll", ["t"], 10) as poll:
            advancing = asyncio.ensure_future(live.advance(MINUTE_MS // 6))
            while len(streams) + len(poll.halves) < 6:
                await asyncio.sleep(0)
                for half in poll.halves:
                    live.record_answer(half.transaction_id)
            for half in poll.halves:
                live.record_answer(half.transaction_id)
            await advancing
            assert (len(streams), len(poll.halves)) == (3, 3)

    play(scenario)
