"""A lease lasts its span of elapsed time, however the system clock is set meanwhile.

The tables are leases x steps of the clock. A step is (after how many ms of the lease, by how many ms).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog import limits
from commitlog.records.message import MessageType
from services.broker.groups.group_values import GroupPolicy
from services.broker.groups.lite_subscribing import LiteStart
from services.broker.spine.values import Subscriber
from tests.unit.services.broker.groups.test_receiving import SETTINGS
from tests.unit.services.broker.groups.test_receiving import Bench as ReceivingBench
from tidewheel.errors import InvalidReceiptHandle

SPAN_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
Steps = tuple[tuple[int, int], ...]
STEPS: Final[dict[str, Steps]] = {
    "none": (),
    "an hour forward": ((1_000, HOUR_MS),),
    "an hour back": ((1_000, -HOUR_MS),),
    "forward by less than is left": ((20_000, 30_000),),
    "back by less than has passed": ((20_000, -10_000),),
    "forward in the moment of the lease": ((0, HOUR_MS),),
    "forward at the last moment": ((SPAN_MS - 1, 10 * 365 * 24 * HOUR_MS),),
    "back at the last moment": ((SPAN_MS - 1, -HOUR_MS),),
    "forward, and back again": ((5_000, HOUR_MS), (15_000, -HOUR_MS)),
    "back, and forward again": ((5_000, -HOUR_MS), (15_000, HOUR_MS)),
    "forward again and again": tuple((at, 900) for at in range(1_000, 50_000, 1_000)),
    "back again and again": tuple((at, -900) for at in range(1_000, 50_000, 1_000)),
}


class Bench(ReceivingBench):
    """A broker whose clock is set, of which the shell tells the core."""

    def __init__(self) -> None:
        super().__init__(replace(SETTINGS, attempts_max=9, auto_renew_lease_ms=SPAN_MS))

    def set_clock(self, by_ms: int) -> None:
        before_ms, self.now_ms = self.now_ms, self.now_ms + by_ms
        self.broker.record_clock_jump(before_ms, self.now_ms)
        self._tick()
        self.flush()

    def pass_with(self, steps: Steps, span_ms: int) -> None:
        """Let `span_ms` elapse, and set the clock on the way."""
        passed_ms = 0
        for at_ms, by_ms in steps:
            self.advance(at_ms - passed_ms)
            passed_ms = at_ms
            self.set_clock(by_ms)
        self.advance(span_ms - passed_ms)


def simple(bench: Bench) -> str:
    bench.send()
    return bench.receive(invisible_ms=SPAN_MS)[0].receipt_handle


def ordered(bench: Bench) -> str:
    bench.send("a")
    return bench.receive(invisible_ms=SPAN_MS)[0].receipt_handle


def changed(bench: Bench, *, suspend: bool = False) -> str:
    bench.send()
    (got,) = bench.receive(invisible_ms=10_000)
    change = bench.broker.receiving.change_invisible
    return change("g", "t", got.receipt_handle, SPAN_MS, suspend, bench.now_ms)[0]


def suspended(bench: Bench) -> str:
    return changed(bench, suspend=True)


def pausing(bench: Bench) -> str:
    bench.send()
    (got,) = bench.receive(auto_renew=True)
    change = bench.broker.receiving.change_invisible
    return change("g", "t", got.receipt_handle, SPAN_MS, False, bench.now_ms)[0]


def pushed(bench: Bench) -> str:
    bench.send()
    return bench.receive(auto_renew=True)[0].receipt_handle


def renewed(bench: Bench) -> str:
    handle = pushed(bench)
    bench.advance(30_000)
    bench.broker.receiving.renew_client("c", bench.now_ms)
    return handle


def lite(bench: Bench) -> str:
    bench.broker.topics.create("t", MessageType.LITE, 1, bench.now_ms)
    bench.broker.lite.subscribe(Subscriber("g", "t", "c"), ["x"], LiteStart(), bench.now_ms)
    bench.send(lite_topic="x")
    return bench.receive(invisible_ms=SPAN_MS)[0].receipt_handle


LEASES: Final[dict[str, Callable[[Bench], str]]] = {
    "simple": simple,
    "of a message group": ordered,
    "changed": changed,
    "suspended": suspended,
    "pause before the next attempt": pausing,
    "of a push consumer": pushed,
    "renewed": renewed,
    "of a lite topic": lite,
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("lease", LEASES.values(), ids=LEASES)
def test_a_lease_lasts_its_span_however_the_clock_is_set(lease: Callable[[Bench], str], steps: Steps) -> None:
    bench = Bench()
    handle = lease(bench)
    bench.pass_with(steps, SPAN_MS - 1)
    assert bench.receive() == []
    bench.advance(1)
    with pytest.raises(InvalidReceiptHandle):
        bench.broker.receiving.ack("g", "t", handle, bench.now_ms)
    assert bench.ids() == ["M1"]


@pytest.mark.parametrize("steps", [STEPS[name] for name in ("an hour forward", "back again and again")])
@pytest.mark.parametrize("lease", LEASES.values(), ids=LEASES)
def test_a_handle_is_good_for_the_span_of_its_lease_however_the_clock_is_set(
    lease: Callable[[Bench], str], steps: Steps
) -> None:
    bench = Bench()
    handle = lease(bench)
    bench.pass_with(steps, SPAN_MS - 1)
    bench.broker.receiving.ack("g", "t", handle, bench.now_ms)
    bench.flush()
    bench.advance(2 * SPAN_MS)
    assert bench.receive() == []


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_a_client_that_is_heard_keeps_its_lease_for_as_long_as_it_may(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUTO_RENEW_MS_MAX", 30_000)
    bench = Bench()
    pushed(bench)
    for at_ms in range(0, 90_000, 10_000):
        here = tuple((at - at_ms, by_ms) for at, by_ms in steps if at_ms <= at < at_ms + 10_000)
        bench.broker.receiving.renew_client("c", bench.now_ms)
        bench.pass_with(here, 10_000 - (at_ms == 80_000))
    assert bench.receive() == []
    bench.advance(1)
    assert bench.ids() == ["M1"]


def test_a_client_that_is_gone_loses_its_leases_at_once_after_the_clock_was_set_back() -> None:
    bench = Bench()
    pushed(bench)
    bench.set_clock(-HOUR_MS)
    bench.broker.receiving.expire_client("c", bench.now_ms)
    bench.advance(0)
    assert bench.ids() == ["M1"]


def test_an_attempt_that_fails_after_the_clock_was_set_back_is_buried_at_once() -> None:
    bench = Bench()
    bench.broker.group_views.set_policy("g", GroupPolicy(attempts_max=1), bench.now_ms)
    bench.send()
    (got,) = bench.receive()
    bench.set_clock(-HOUR_MS)
    bench.broker.receiving.retry("g", "t", got.receipt_handle, None, bench.now_ms)
    bench.advance(0)
    assert len(bench.broker.dead_letters.read_page("g", None, 10).dead_letters) == 1


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(-2 * HOUR_MS, 2 * HOUR_MS)), max_size=8))
def test_elapsed_time_alone_ends_a_lease(course: list[tuple[int, int]]) -> None:
    """`course`: ms that elapse, and by how many ms the clock is set then."""
    bench, left_ms = Bench(), SPAN_MS
    simple(bench)
    for elapses_ms, by_ms in course:
        bench.advance(min(elapses_ms, left_ms - 1))
        left_ms -= min(elapses_ms, left_ms - 1)
        bench.set_clock(by_ms)
    bench.advance(left_ms - 1)
    assert bench.receive() == []
    bench.advance(1)
    assert bench.ids() == ["M1"]


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_a_restart_goes_by_the_clock_and_no_lease_outlasts_its_span_from_there(steps: Steps) -> None:
    """What is kept of a lease is when it ends by the clock of then: a step counts as time that has passed."""
    bench = Bench()
    ordered(bench)
    bench.pass_with(steps, SPAN_MS - 1)
    bench.now_ms += 1
    bench.reopen()
    left_ms = min(max(1 - 1 - sum(by_ms for _, by_ms in steps), 0), SPAN_MS)
    if left_ms:
        bench.advance(left_ms - 1)
        assert bench.receive() == []
    bench.advance(1)
    assert bench.ids() == ["M1"]
