"""How consumer groups are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commitlog import limits
from services.cli.groups.group_views import (
    filter_line,
    group_lines,
    group_row,
    lag_rows,
    moved,
    reset_line,
    retries,
)


def queue(**more: Any) -> dict[str, Any]:
    """Return a queue as the HTTP interface shows it."""
    offsets = {"min_offset": "0", "committed_offset": "0", "next_offset": "0", "end_offset": "9"}
    counts = {"lag": 9, "in_flight": 0, "waiting": 0, "oldest_ms": None}
    return {"topic": "orders", "queue_id": 1} | offsets | counts | more


def group(*queues: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a group as the HTTP interface shows it."""
    policy = {"attempts_max": 17, "retry_after_ms": [1_000], "fifo_run_max": 1}
    policy |= {"is_paused": False, "is_lite_exclusive": False}
    counts = {"lag": 9, "in_flight": 0, "waiting": 0, "oldest_ms": None, "consumers": 0}
    return {"name": "shop", "topics": ["orders"], "policy": policy, "queues": list(queues)} | counts | more


def test_the_state_is_only_there_when_somebody_should_act() -> None:
    assert group_row(group())[-1] == "no consumer"
    assert group_row(group(consumers=1))[-1] == ""
    assert group_row(group(lag=0))[-1] == ""
    paused = group()["policy"] | {"is_paused": True}
    assert group_row(group(policy=paused, consumers=1))[-1] == "paused"


def test_what_retention_took_from_a_group_is_shown() -> None:
    topics = [{"topic": "orders", "count": 1_295, "last_ms": "1800000000000"}]
    lost = group(consumers=1, missed=1_295, missed_ms="1800000000000", missed_topics=topics)
    assert group_row(lost)[-1] == "missed 1,295"
    assert group_row(lost | {"consumers": 0})[-1] == "no consumer, missed 1,295"
    [line] = [one for one in group_lines(lost) if one.startswith("  missed")]
    assert line.startswith("  missed     1,295   deleted by retention before it had finished them, the last ")
    assert line.endswith(": orders (1,295)")
    assert not any("missed" in one for one in group_lines(group(missed=0, missed_ms=None)))


def test_of_many_topics_a_line_has_some_and_how_many_more_there_are() -> None:
    few, many = ["a", "b", "c"], [f"orders-{number:03}" for number in range(500)]
    assert group_row(group(topics=few))[1] == "a b c"
    assert group_row(group(topics=many))[1] == "orders-000 orders-001 and 498 more"
    assert next(group_lines(group(topics=many))) == "shop  orders-000 orders-001 and 498 more"
    assert next(group_lines(group(topics=few))) == "shop  a b c"


def test_a_queue_that_gives_out_nothing_new_is_named() -> None:
    held = queue(in_flight=limits.IN_FLIGHT_PER_QUEUE_MAX)
    assert "held up    orders queue 1 " in "\n".join(group_lines(group(held)))
    assert "held up" not in "\n".join(group_lines(group(queue(in_flight=3))))


def test_a_filter_is_shown_as_documented_with_its_clients_and_what_waits_for_it() -> None:
    page = (Path(__file__).parents[5] / "docs" / "filters.md").read_text()
    one = {"topic": "orders", "type": "TAG"}
    assert filter_line(one | {"expression": "paid", "clients": 2, "waiting": 0}) + "\n" in page
    assert filter_line(one | {"expression": "sent", "clients": 0, "waiting": 10}) + "\n" in page
    last = filter_line(one | {"expression": "sent", "clients": 1, "waiting": 1})
    assert last.endswith("1 client   1 message waits for a client with it")


def test_what_waits_is_counted_apart_from_what_is_leased() -> None:
    lines = list(group_lines(group(in_flight=3, waiting=10)))
    assert "  in flight  3   leased now" in lines
    assert any(one.startswith("  waiting    10   ") and "another filter" in one for one in lines)


def test_lag_is_summed_by_topic_the_largest_first() -> None:
    found = lag_rows([group(queue(), queue(queue_id=2, topic="pushes", lag=20), queue(queue_id=3))])
    assert [(topic, lag) for _, topic, lag, *_ in found] == [("pushes", "20"), ("orders", "18")]


def test_a_reset_says_what_comes_again_and_what_is_skipped() -> None:
    assert (moved(0), moved(2), moved(-1_000)) == ("stays", "skips 2", "gives 1,000 again")
    moves = [{"before": "5", "after": "3"}, {"before": "0", "after": "4"}]
    assert reset_line({"moves": moves}) == "gives up to 2 again and skips up to 4"
    assert reset_line({"moves": moves[:0]}) == "moves nothing"


def test_many_pauses_are_told_by_the_first_and_the_last() -> None:
    assert retries([1_000, 60_000]) == "1s 1m"
    assert retries([*range(1_000, 18_000, 1_000), 7_200_000]) == "1s 2s 3s ... 2h (18 steps)"
