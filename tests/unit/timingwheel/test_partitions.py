"""The far levels against a set: puts, cancels, checkpoints, reads, jumps of time and crashes, mixed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.memory_disk import MemoryDisk

from .caller import FOREVER_MS, Caller

START_MS = 1_763_700_000_123
delays = st.one_of(
    st.integers(0, 100),
    st.integers(0, 40_000),
    st.integers(0, 5_000_000),
    st.integers(0, 200_000_000),
    st.integers(0, 3 * 10**11),
)
actions = st.one_of(
    st.tuples(st.just("put"), delays),
    st.tuples(st.just("put"), delays),
    st.tuples(st.just("put_many"), delays),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("read"), st.just(0)),
    st.tuples(st.just("deliver"), st.integers(1, 4)),
    st.tuples(st.just("begin"), st.just(0)),
    st.tuples(st.just("end"), st.just(0)),
    st.tuples(st.just("fail"), st.just(0)),
    st.tuples(st.just("pass"), delays),
    st.tuples(st.just("advance"), delays),
    st.tuples(st.just("crash"), st.just(0)),
)


def act(caller: Caller, action: str, number: int) -> None:
    if action == "put":
        caller.put(caller.now_ms + number)
    elif action == "put_many":
        caller.put_many([caller.now_ms + number + step * number // 7 for step in range(8)])
    elif action == "cancel" and caller.pending:
        caller.cancel(sorted(caller.pending)[number % len(caller.pending)])
    elif action == "look":
        caller.look()
    elif action == "read":
        caller.read()
    elif action == "deliver":
        caller.look()
        caller.deliver(number)
    elif action == "begin":
        caller.begin_checkpoint()
    elif action in ("end", "fail"):
        caller.end_checkpoint(fails=action == "fail")
    elif action == "pass":
        caller.now_ms += number
    elif action == "advance":
        caller.now_ms += number
        settle(caller)
    elif action == "crash":
        caller.crash()


def settle(caller: Caller) -> None:
    caller.settle()
    assert not [place for place in caller.pending if place[0] <= caller.now_ms]
    assert not caller.partitions.is_waiting


@settings(max_examples=600, deadline=None)
@given(st.lists(actions, max_size=60), st.integers(1, 6))
def test_agrees_with_a_set(steps: list[tuple[str, int]], rows_max: int) -> None:
    caller = Caller(MemoryDisk(), START_MS, rows_max)
    for action, number in steps:
        act(caller, action, number)
        expected = sorted(caller.pending)
        assert caller.listed() == expected
        assert caller.partitions.count(0, FOREVER_MS) == len(expected)
        middle = expected[len(expected) // 2] if expected else (START_MS, 0)
        assert caller.partitions.count(0, middle[0]) == len([p for p in expected if p[0] < middle[0]])
        assert caller.listed(after=middle) == [place for place in expected if place > middle]
    for _ in range(500):
        upcoming_ms = caller.partitions.next_look_ms(caller.now_ms)
        times = [time for time in (upcoming_ms, *(due for due, _ in caller.wheel)) if time is not None]
        if not times:
            break
        caller.now_ms = max(caller.now_ms + (upcoming_ms is None), *times[:1])
        settle(caller)
    assert not caller.pending
    assert not caller.partitions.damage
