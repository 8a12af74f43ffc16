"""By what leases are known: generations of which no start of a broker repeats one."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from services.broker.groups.leases import Leases
from services.broker.groups.lite_subscriptions import LiteSubscriptions
from services.broker.spine.lease_clock import LeaseClock
from services.broker.spine.scheduler import Scheduler
from services.broker.spine.settings import BrokerSettings

NOW_MS = 1_763_700_000_000
count = st.integers(0, 300)


def given_out(now_ms: int, store_ms: int, count: int) -> list[int]:
    """The generations of a start, before which `store_ms` was the newest store time."""
    clock = LeaseClock()
    subscriptions = LiteSubscriptions(BrokerSettings(), clock)
    leases = Leases(Scheduler(now_ms, clock), clock, subscriptions, now_ms)
    leases.set_first_generation(store_ms, now_ms)
    return [leases.next_generation() for _ in range(count)]


@given(st.lists(st.tuples(st.integers(1, 5), count), min_size=2, max_size=6))
def test_a_start_repeats_no_generation_of_an_earlier_one(starts: list[tuple[int, int]]) -> None:
    """Though the log tells none of them: of a lease that was acknowledged in memory there is no record."""
    times_ms = [*accumulate((after_ms for after_ms, _ in starts), initial=NOW_MS)]
    many = zip(times_ms, times_ms[1:], starts, strict=False)
    found = [one for before_ms, now_ms, (_, n) in many for one in given_out(now_ms, before_ms, n)]
    assert len({*found}) == len(found)


@given(st.dictionaries(st.integers(0, 60_000), count, min_size=2, max_size=6), count)
def test_nor_does_one_while_the_clock_is_behind_the_newest_store_time(
    starts: dict[int, int], before: int
) -> None:
    found = given_out(NOW_MS, NOW_MS - 1, before)
    for back_ms, n in starts.items():
        found += given_out(NOW_MS - back_ms, NOW_MS, n)
    assert len({*found}) == len(found)
