"""Output of `tidewheel timer` for users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.status.judgement import counted
from services.times.display import away, both, span, wall

Answer = dict[str, Any]

BAR_CHARACTERS = 40
EMPTY = "no timers match. Set one:  tidewheel send hello 'it works' --in 5m --timer-key first"
TAKEN_EFFECT = ("CANCELLED", "MOVED", "FIRED")


def summary_lines(answer: Answer) -> Iterator[str]:
    """Yield the lines of the timer summary."""
    next_due = answer["next_due_ms"]
    first = "" if next_due is None else f"   next due {both(int(next_due))}"
    yield f"pending {answer['pending']:,}{first}"
    yield lateness_line("lateness", answer["lateness"])
    yield f"due in    {' | '.join(due_parts(answer['due']))}"
    yield from map(held_line, answer.get("held", ()))
    for topic, count in sorted(answer["pending_by_topic"].items(), key=lambda pair: -pair[1]):
        late = answer["lateness_by_topic"].get(topic)
        told = lateness_line("   lateness", late).rstrip() if late else ""
        yield f"  {topic:<24} {count:>12,}{told}"


def held_line(one: Answer) -> str:
    """Return a line about the held timers of a topic, or about the rest of a release."""
    if one["per_second"] is None:
        why = f", because: {one['reason']}" if one["reason"] else ""
        waits = "waits" if one["held"] == 1 else "wait"
        return f"held      {one['topic']}: {counted(one['held'], 'due timer')} {waits} for its release{why}"
    pace = f"{one['per_second']:,} per second" if one["per_second"] else "at once"
    return f"released  {one['topic']}: {counted(one['held'], 'held timer')} left, {pace}"


def lateness_line(title: str, late: Answer) -> str:
    """Return a line about the lateness of deliveries."""
    after_hold = f"   {late['after_hold']:,} delivered after a hold" if late["after_hold"] else ""
    if not late["delivered"]:
        return title + (after_hold or "  nothing was delivered since the broker's start")
    shares = f"p50 <={span(late['p50_ms'])}  p99 <={span(late['p99_ms'])}  max {span(late['max_ms'])}"
    early = f"never-early violations {late['early_count']}"
    return f"{title}  {shares}   of {late['delivered']:,} delivered   {early}{after_hold}"


def due_parts(due: list[Answer]) -> Iterator[str]:
    """Yield the number of timers that are due in each time span. A timer is counted in a single span."""
    since = ""
    for one in due:
        within = "" if one["within_ms"] is None else span(int(one["within_ms"]))
        named = "later" if not within else f"{since} to {within}" if since else f"<{within}"
        yield f"{named} {one['count']:,}"
        since = within


def histogram_rows(windows: list[Answer]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row with a bar for each window."""
    largest = max(window["count"] for window in windows)
    for window in windows:
        start_ms, count = int(window["start_ms"]), window["count"]
        bar = "#" * max(1, round(BAR_CHARACTERS * count / largest))
        yield wall(start_ms), away(start_ms), f"{count:,}", bar


def timer_row(timer: Answer) -> tuple[str, ...]:
    """Return a timer as a table row."""
    due_ms = int(timer["due_ms"])
    keys, tag = " ".join(timer["keys"]), timer["tag"]
    when = "held" if timer.get("state") == "held" else away(due_ms)
    return wall(due_ms), when, timer["topic"], timer["timer_key"], keys, tag, timer["message_id"]


def damage_lines(answer: Answer) -> Iterator[str]:
    """Yield lines about the damage found since the broker's start."""
    if not answer["count"] and not answer["unreadable"]:
        yield "nothing was found damaged since the broker's start. To prove it all:  tidewheel store verify"
        return
    for one in answer["damage"]:
        yield f"{one['part']}: {one['what']}"
    yield (
        f"{answer['count']:,} damaged places since the start, {answer['rebuilt']:,} timers rebuilt, "
        f"{answer['unreadable']:,} timers that nobody has any more"
    )


def lost_row(timer: Answer) -> tuple[str, ...]:
    """Return a timer that ended as UNREADABLE as a table row."""
    due_ms, ended_ms = int(timer["due_ms"]), int(timer["ended_ms"])
    return wall(due_ms), away(due_ms), timer["topic"] or "?", timer["timer_offset"], wall(ended_ms)


def timer_lines(timer: Answer) -> Iterator[str]:
    """Yield the lines that describe a pending timer."""
    name = timer["timer_key"] or timer["message_id"]
    state = "HELD" if timer.get("state") == "held" else "PENDING"
    yield f"{state}  {name}  {timer['topic']}  due {both(int(timer['due_ms']))}"
    yield f"  id {timer['message_id']}  stored {both(int(timer['stored_ms']))}  log@{timer['timer_offset']}"
    if timer.get("note"):
        yield f"  {timer['note']}"
    for title, value in (
        ("timer key", timer["timer_key"]),
        ("keys", " ".join(timer["keys"])),
        ("tag", timer["tag"]),
    ):
        if value:
            yield f"  {title} {value}"
    message = timer["message"]
    if message is None:
        yield "  its record cannot be read: tidewheel store verify"
        return
    for name, value in message["properties"].items():
        if name != "TW_TIMER_KEY":
            yield f"  property {name}={value}"
    yield f"  {message.get('body', '(binary)')}"
