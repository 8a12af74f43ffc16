"""Answers are given in the order in which they were decided, once their records are durable, or refused."""

from __future__ import annotations

import asyncio

import pytest

from services.broker.spine.errors import DiskFull, KeyPending, TooManyHalves
from services.live.durability import OWN_MS, Answers, LeadershipProofs, required_offset
from services.live.errors import ResultUnknown


async def waiting(durable: Answers, offset: int, answered: list[int]) -> None:
    await durable.wait_until_durable(offset)
    answered.append(offset)


def test_answers_go_in_the_order_in_which_they_were_decided() -> None:
    async def scenario() -> None:
        durable, answered = Answers(100), list[int]()
        offsets = (200, 100, 250, 300, 280)
        tasks = [asyncio.create_task(waiting(durable, offset, answered)) for offset in offsets]
        await asyncio.sleep(0)
        assert answered == [100]
        durable.advance(290)
        await asyncio.gather(*tasks[:3])
        assert answered == [100, 200, 250]
        durable.advance(300)
        await asyncio.gather(*tasks)
        assert answered == [100, 200, 250, 300, 280]

    asyncio.run(scenario())


def test_everybody_who_waits_is_refused_and_the_next_may_wait_again() -> None:
    async def scenario() -> None:
        durable, answered = Answers(0), list[int]()
        tasks = [asyncio.create_task(waiting(durable, offset, answered)) for offset in (1, 2)]
        await asyncio.sleep(0)
        durable.refuse(ResultUnknown("lost"), 0)
        for task in tasks:
            with pytest.raises(ResultUnknown):
                await task
        later = asyncio.create_task(waiting(durable, 1, answered))
        await asyncio.sleep(0)
        durable.advance(1)
        await later
        assert answered == [1]

    asyncio.run(scenario())


def test_a_caller_that_left_does_not_hold_up_the_others() -> None:
    async def scenario() -> None:
        durable, answered = Answers(0), list[int]()
        leaving, staying = (asyncio.create_task(waiting(durable, offset, answered)) for offset in (1, 2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        durable.advance(2)
        await staying
        assert answered == [2]

    asyncio.run(scenario())


def test_an_answer_without_a_record_waits_for_a_proof_that_began_behind_it() -> None:
    async def scenario() -> None:
        now_ms, asked, answered = [10], list[int](), list[int]()
        durable = Answers(100, LeadershipProofs(lambda: now_ms[0], lambda: asked.append(now_ms[0])))
        first = asyncio.create_task(waiting(durable, 100, answered))
        await asyncio.sleep(0)
        assert asked == [10]
        durable.confirm_leadership(10)  # it may have begun before the call did
        await asyncio.sleep(0)
        assert (answered, asked) == ([], [10, 10])
        now_ms[0] = 12
        second = asyncio.create_task(waiting(durable, 99, answered))
        await asyncio.sleep(0)
        durable.confirm_leadership(11)
        await first
        assert answered == [100]
        durable.confirm_leadership(13)
        await second
        assert answered == [100, 99]

    asyncio.run(scenario())


def test_what_waits_for_a_proof_is_refused_with_the_rest() -> None:
    async def scenario() -> None:
        durable = Answers(100, LeadershipProofs(lambda: 0, lambda: None))
        task = asyncio.create_task(waiting(durable, 100, []))
        await asyncio.sleep(0)
        durable.refuse(ResultUnknown("another leads"), 100)
        with pytest.raises(ResultUnknown):
            await task

    asyncio.run(scenario())


def test_a_refusal_for_want_of_own_means_waits_for_a_proof_that_comes_soon() -> None:
    async def scenario() -> None:
        now_ms, waits = [10], list[int]()
        durable = Answers(
            100, LeadershipProofs(lambda: now_ms[0], lambda: None), lambda: waits.append(now_ms[0])
        )
        answered = list[int]()
        full = required_offset(DiskFull())
        proven = asyncio.create_task(waiting(durable, full, answered))
        await asyncio.sleep(0)
        assert (answered, waits) == ([], [10])
        durable.confirm_leadership(11)
        await proven
        assert answered == [full]
        now_ms[0] = 20
        early, unproven = (asyncio.create_task(waiting(durable, one, answered)) for one in (full, 0))
        await asyncio.sleep(0)
        now_ms[0] = 21
        late = asyncio.create_task(waiting(durable, full, answered))
        await asyncio.sleep(0)
        now_ms[0] = 20 + OWN_MS
        assert durable.fail_local_refusals(ResultUnknown("full")), "the late one waits"
        with pytest.raises(ResultUnknown, match="full"):
            await early
        assert [late.done(), unproven.done()] == [False, False]
        now_ms[0] += 1
        assert not durable.fail_local_refusals(ResultUnknown("full"))
        with pytest.raises(ResultUnknown, match="full"):
            await late
        durable.confirm_leadership(now_ms[0])
        await unproven
        alone = Answers(100)
        await waiting(alone, full, answered)

    asyncio.run(scenario())


def test_other_refusals_wait_for_a_proof_or_for_their_records() -> None:
    async def scenario() -> None:
        durable, answered = Answers(100, LeadershipProofs(lambda: 0, lambda: None)), list[int]()
        unproven = asyncio.create_task(waiting(durable, required_offset(TooManyHalves()), answered))
        refused = KeyPending()
        refused.durable_at = 120
        unwritten = asyncio.create_task(waiting(durable, required_offset(refused), answered))
        await asyncio.sleep(0)
        assert answered == []
        durable.confirm_leadership(1)
        durable.advance(120)
        await asyncio.gather(unproven, unwritten)

    asyncio.run(scenario())


def test_where_nobody_proves_any_more_what_rests_on_no_record_is_refused_and_a_broker_alone_answers() -> None:
    async def scenario() -> None:
        answered = list[int]()
        led, alone = Answers(100, LeadershipProofs(lambda: 0, lambda: None)), Answers(100)
        before = asyncio.create_task(waiting(led, 100, answered))
        await asyncio.sleep(0)
        for answers in (led, alone):
            answers.stop_proofs(ResultUnknown("leads no more"))
        for task in (before, asyncio.create_task(waiting(led, 50, answered))):
            with pytest.raises(ResultUnknown):
                await task
        written = asyncio.create_task(waiting(led, 200, answered))
        await asyncio.sleep(0)
        led.advance(200)  # an append that was accepted proves itself
        await written
        await waiting(alone, 50, answered)
        assert answered == [200, 50]

    asyncio.run(scenario())


def test_held_answers_are_refused_whatever_they_rest_on_until_they_are_given_again() -> None:
    async def scenario() -> None:
        asked, answered = list[int](), list[int]()
        durable = Answers(100, LeadershipProofs(lambda: 5, lambda: asked.append(1)))
        before = asyncio.create_task(waiting(durable, 200, answered))
        proof = asyncio.create_task(waiting(durable, 50, answered))
        await asyncio.sleep(0)
        damaged = ResultUnknown("a record is gone")
        durable.hold(damaged)
        during = [asyncio.create_task(waiting(durable, offset, answered)) for offset in (-1, 50, 300)]
        await asyncio.sleep(0)
        durable.confirm_leadership(9)
        durable.advance(300)
        for task in (before, proof, *during):
            with pytest.raises(ResultUnknown, match="a record is gone"):
                await task
        durable.refuse(ResultUnknown("the disk"), 300)
        late = asyncio.create_task(waiting(durable, 300, answered))
        await asyncio.sleep(0)
        assert not late.done()
        durable.release(300)
        durable.confirm_leadership(9)
        await late
        assert answered == [300]

    asyncio.run(scenario())


def test_what_came_while_answers_were_held_waits_for_a_proof_as_ever() -> None:
    async def scenario() -> None:
        asked, answered = list[int](), list[int]()
        durable = Answers(100, LeadershipProofs(lambda: 5, lambda: asked.append(1)))
        durable.hold(ResultUnknown("a record is gone"))
        late = asyncio.create_task(waiting(durable, 50, answered))
        await asyncio.sleep(0)
        durable.release(100)
        await asyncio.sleep(0)
        assert (answered, len(asked)) == ([], 1)
        durable.confirm_leadership(9)
        await late
        assert answered == [50]

    asyncio.run(scenario())
