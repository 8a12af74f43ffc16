"""Output of `tidewheel group` for users."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from commitlog import limits
from services.cli.terminal.output import some
from services.times.display import away, both, now_ms, span

Answer = dict[str, Any]

PAUSES_SHOWN_MAX = 6
EMPTY = "no consumer group yet. One is made by its first receive, or by:  tidewheel group create shop"
GROUPS = ("group", "topics", "lag", "oldest", "in flight", "waiting", "consumers", "state")
LAGS = ("group", "topic", "lag", "oldest", "in flight", "waiting")
QUEUES = ("topic", "queue", "first", "committed", "end", "lag", "in flight", "waiting", "oldest")
MOVES = ("topic", "queue", "before", "after", "")
CLIENTS = ("client", "kind", "library", "leased", "polls", "filters", "heard")


def group_row(group: Answer) -> tuple[str, ...]:
    """Return a group as a table row."""
    return (
        group["name"],
        some(group["topics"]) or "none yet",
        f"{group['lag']:,}",
        age(group["oldest_ms"]),
        f"{group['in_flight']:,}",
        f"{group['waiting']:,}",
        f"{group['consumers']:,}",
        state(group),
    )


def state(group: Answer) -> str:
    """Return the conditions that require attention: paused, no consumer, or missed messages."""
    missed = f"missed {group['missed']:,}" if group.get("missed") else ""
    return ", ".join(filter(None, (_serving(group), missed)))


def _serving(group: Answer) -> str:
    if group["policy"]["is_paused"]:
        return "paused"
    return "no consumer" if group["lag"] and not group["consumers"] else ""


def group_lines(group: Answer) -> Iterator[str]:
    """Yield the lines that describe a group without its queues."""
    policy = group["policy"]
    yield f"{group['name']}  {some(group['topics']) or 'receives no topic yet'}" + (
        "  PAUSED" if policy["is_paused"] else ""
    )
    oldest = f"   the oldest since {both(int(group['oldest_ms']))}" if group["oldest_ms"] else ""
    facts = {
        "lag": f"{group['lag']:,}{oldest}",
        "in flight": f"{group['in_flight']:,}   leased now",
        "waiting": f"{group['waiting']:,}   to be retried, behind their message group, or for another filter",
        "consumers": f"{group['consumers']:,}   tidewheel group clients {group['name']}",
        "attempts": f"{policy['attempts_max']}, again after {retries(policy['retry_after_ms'])}",
        "fifo run": f"{policy['fifo_run_max']} of one message group at once"
        if policy["fifo_run_max"] > 1
        else "",
        "missed": missed_line(group),
        "lite": "exclusive: who subscribes last has one" if policy["is_lite_exclusive"] else "",
    }
    yield from (f"  {name:<10} {value}" for name, value in facts.items() if value)
    yield from map(filter_line, group.get("filters", ()))
    for queue in group.get("queues", ()):
        if is_held_up(queue):
            where = f"{queue['topic']} queue {queue['queue_id']}"
            yield (
                f"  held up    {where} gives out nothing new: acknowledge messages, start "
                "clients with the filters that messages wait for, or wait until leases end"
            )


def missed_line(group: Answer) -> str:
    """Return a line about messages that retention deleted before the group had processed them, or an empty
    string.
    """
    if not group.get("missed"):
        return ""
    topics = [f"{one['topic']} ({one['count']:,})" for one in group["missed_topics"]]
    when = both(int(group["missed_ms"]))
    what = f"deleted by retention before it had finished them, the last {when}"
    return f"{group['missed']:,}   {what}: {some(topics)}"


def filter_line(one: Answer) -> str:
    """Return a line about a filter with the number of its clients and of the messages that wait for them."""
    clients = f"{one['clients']:,} client{'s' * (one['clients'] != 1)}"
    count = one["waiting"]
    waits = "1 message waits" if count == 1 else f"{count:,} messages wait"
    waiting = f"   {waits} for a client with it" if count else ""
    return f"  filter     {one['topic']}: {one['type']} {one['expression']}   {clients}{waiting}"


def is_held_up(queue: Answer) -> bool:
    """Return whether the leased or waiting messages of a queue have reached their limit."""
    return bool(
        queue["in_flight"] >= limits.IN_FLIGHT_PER_QUEUE_MAX
        or queue["waiting"] >= limits.PARKED_PER_QUEUE_MAX
    )


def retries(retry_after_ms: list[int]) -> str:
    """Return the retry delays as text, such as 1s 5s 10s ... 2h (18 steps). The last delay is repeated."""
    spans = [span(one) for one in retry_after_ms]
    if len(spans) <= PAUSES_SHOWN_MAX:
        return " ".join(spans)
    return f"{' '.join(spans[:3])} ... {spans[-1]} ({len(spans)} steps)"


def queue_rows(queues: Iterable[Answer]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each queue."""
    for queue in queues:
        counts = (f"{queue[name]:,}" for name in ("lag", "in_flight", "waiting"))
        offsets = (f"{int(queue[name]):,}" for name in ("min_offset", "committed_offset", "end_offset"))
        yield queue["topic"], str(queue["queue_id"]), *offsets, *counts, age(queue["oldest_ms"])


def lag_rows(groups: Iterable[Answer]) -> list[tuple[str, ...]]:
    """Return a table row for each group and topic, largest lag first."""
    lines: list[tuple[int, tuple[str, ...]]] = []
    for group in groups:
        by_topic: defaultdict[str, list[Answer]] = defaultdict(list)
        for queue in group["queues"]:
            by_topic[queue["topic"]].append(queue)
        for topic, queues in by_topic.items():
            sums = [sum(queue[name] for queue in queues) for name in ("lag", "in_flight", "waiting")]
            stored = [int(queue["oldest_ms"]) for queue in queues if queue["oldest_ms"]]
            lag, in_flight, waiting = (f"{one:,}" for one in sums)
            oldest = age(str(min(stored))) if stored else age(None)
            lines.append((sums[0], (group["name"], topic, lag, oldest, in_flight, waiting)))
    return [line for _, line in sorted(lines, key=lambda one: -one[0])]


def move_rows(moves: Iterable[Answer]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each queue that a reset moves."""
    for move in moves:
        before, after = int(move["before"]), int(move["after"])
        yield move["topic"], str(move["queue_id"]), f"{before:,}", f"{after:,}", moved(after - before)


def moved(by: int) -> str:
    """Return the effect of an offset change on the messages of a queue."""
    if by == 0:
        return "stays"
    return f"skips {by:,}" if by > 0 else f"gives {-by:,} again"


def reset_line(answer: Answer) -> str:
    """Return a summary of a reset."""
    steps = [int(move["after"]) - int(move["before"]) for move in answer["moves"]]
    again, skipped = -sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    parts = [f"gives up to {again:,} again" if again else "", f"skips up to {skipped:,}" if skipped else ""]
    return " and ".join(part for part in parts if part) or "moves nothing"


def client_rows(consumers: Iterable[Answer]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each consumer."""
    for one in consumers:
        yield (
            one["client_id"],
            one["kind"].removesuffix("_CONSUMER").lower(),
            f"{one['language'].lower()} {one['version']}",
            f"{one['leased']:,}",
            f"{one['receives']:,}",
            "; ".join(one["filters"]),
            away(int(one["seen_ms"])) + ("" if one["is_connected"] else ", no stream"),
        )


def age(stored_ms: str | None) -> str:
    """Return the time since a message was stored."""
    return "-" if stored_ms is None else span(max(0, now_ms() - int(stored_ms)))
