"""Which missed runs are given up, against counting them one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog import limits
from services.broker.schedules.missed_runs import find_cutoff_ms
from services.broker.schedules.schedule_values import MissedRunPolicy, Schedule

NOW_MS = 1_763_700_000_000
CRONS = ("* * * * * *", "*/7 * * * *", "* 3 * * *", "*/5 * 1 * * *", "0,1,2,50 4 * * *", "0 0 1 * *")


@settings(max_examples=60)
@given(
    st.sampled_from(CRONS),
    st.sampled_from(MissedRunPolicy),
    st.integers(1, 40),
    st.integers(0, 400_000_000),
    st.integers(5_001, 8_000_000),
)
def test_what_is_left_is_what_the_policy_says(
    cron: str, policy: MissedRunPolicy, count_max: int, from_ms: int, span_ms: int
) -> None:
    schedule = Schedule(
        name="s",
        cron=cron,
        time_zone="Europe/Berlin",
        topic="t",
        body=b"x",
        missed=policy,
        missed_max=count_max,
    )
    cursor_ms, now_ms = NOW_MS + from_ms, NOW_MS + from_ms + span_ms
    due = [*schedule.recurrence.between(cursor_ms, now_ms)]
    if not due:
        return
    left = [at_ms for at_ms in due if at_ms > find_cutoff_ms(schedule, cursor_ms, now_ms)]
    expected = {
        MissedRunPolicy.SKIP: [at_ms for at_ms in due if now_ms - at_ms <= limits.SCHEDULE_LATE_MS_MAX],
        MissedRunPolicy.ONCE: due[-1:],
        MissedRunPolicy.ALL: due[-count_max:],
    }
    assert left == expected[policy]


def test_a_burst_long_ago_is_cut_to_the_newest() -> None:
    schedule = Schedule(
        name="s",
        cron="* * * 1 1 *",
        time_zone="UTC",
        topic="t",
        body=b"x",
        missed=MissedRunPolicy.ALL,
        missed_max=10,
    )
    until_ms = find_cutoff_ms(schedule, NOW_MS, NOW_MS + 300 * 86_400_000)
    left = [*schedule.recurrence.between(until_ms, NOW_MS + 300 * 86_400_000)]
    assert len(left) == 10
    assert left[-1] == 1_767_311_999_000, "the last second of 1 January 2026"
