"""How topics, and the holds of their timers, are told: one is not told as many."""

from __future__ import annotations

from typing import Any

import pytest

from services.cli.groups.topic import discarded, hold_line, topic_line
from services.cli.terminal.bulk import Run
from services.cli.timers.timer_views import held_line


@pytest.mark.parametrize(
    ("count", "held", "released"),
    [(1, "1 is due and waits", "1 held one is"), (2, "2 are due", "2 held ones are")],
)
def test_a_hold_tells_how_many_wait(count: int, held: str, released: str) -> None:
    hold: dict[str, Any] = {"held": count, "since_ms": "0", "reason": "", "per_second": None}
    assert held in hold_line(hold)
    assert f"{released} left" in hold_line(hold | {"per_second": 5})


def test_one_timer_is_told_as_one_in_a_summary_and_a_preview() -> None:
    hold = {"topic": "t", "held": 1, "reason": "", "per_second": None}
    assert held_line(hold) == "held      t: 1 due timer waits for its release"
    assert held_line(hold | {"held": 2}) == "held      t: 2 due timers wait for its release"
    assert held_line(hold | {"per_second": 0}) == "released  t: 1 held timer left, at once"
    run = Run(yes=False, dry_run=True, detach=False, as_json=False)
    found = [{"matched": count} for count in (0, 1, 1_200)]
    assert [run.extent(one, "timer") for one in found] == ["0 timers", "1 timer", "1,200 timers"]
    first = Run(yes=False, dry_run=True, detach=False, as_json=False, limit=5)
    assert [first.extent(one, "timer") for one in found[1:]] == ["1 of 1 timer", "5 of 1,200 timers"]


@pytest.mark.parametrize(
    ("by_verdict", "limit", "said"),
    [
        ({"TW-144": 2, "TW-168": 6}, None, "0 of 8 messages"),
        ({"TW-144": 2, "TW-168": 6}, 3, "0 of 8 messages"),
        ({"MOVED": 7, "LEASED": 1}, None, "7 of 8 messages"),
        ({"MOVED": 7, "LEASED": 1}, 3, "at most 3 of 8 messages"),
        ({"MOVED": 8}, None, "8 messages"),
    ],
)
def test_a_preview_does_not_count_the_messages_that_would_stay(
    by_verdict: dict[str, int], limit: int | None, said: str
) -> None:
    run = Run(yes=False, dry_run=True, detach=False, as_json=False, limit=limit)
    reasons = {verdict: "why" for verdict in by_verdict if verdict != "MOVED"}
    assert run.extent({"matched": 8, "by_verdict": by_verdict, "reasons": reasons}, "message") == said


@pytest.mark.parametrize(
    ("by_verdict", "limit", "said"),
    [
        ({}, None, "no message so far"),
        ({}, 3, "no message so far"),
        ({"MOVED": 1}, None, "at least 1 message"),
        ({"MOVED": 8}, 3, "3 of at least 8 messages"),
        ({"MOVED": 8}, 30, "at most 30 of at least 8 messages"),
        ({"MOVED": 7, "LEASED": 1}, None, "at least 7 of at least 8 messages"),
        ({"MOVED": 7, "LEASED": 1}, 3, "at most 3 of at least 8 messages"),
    ],
)
def test_a_preview_whose_time_was_over_tells_the_least(
    by_verdict: dict[str, int], limit: int | None, said: str
) -> None:
    run = Run(yes=False, dry_run=True, detach=False, as_json=False, limit=limit)
    reasons = {verdict: "why" for verdict in by_verdict if verdict != "MOVED"}
    place = {"queue_id": 0, "queue_offset": "9"}
    found = {"matched": sum(by_verdict.values()), "by_verdict": by_verdict, "reasons": reasons}
    assert run.extent(found | {"counted_until": place}, "message") == said


def test_one_queue_and_one_message_are_told_as_one() -> None:
    topic = {"name": "t", "message_type": "MIXED", "queue_count": 1}
    assert topic_line(topic) == "t takes mixed, 1 queue"
    assert topic_line(topic | {"queue_count": 2}) == "t takes mixed, 2 queues"
    assert discarded({"messages": 1, "unfinished": 1}) == "1 message was discarded, 1 of them unfinished"
    assert discarded({"messages": 2, "unfinished": 0}) == "2 messages were discarded, 0 of them unfinished"
