"""`tidewheel explain`: the history of a message or order in the log, with times and log offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.bulk import REFUSED
from services.status.waiting import Waiting, waiting
from services.times.display import exactly, span

app = typer.Typer(add_completion=False)


@app.command()
def explain(
    name: Annotated[
        str,
        typer.Argument(help="A message key or id, a timer key, a transaction id, or @ and a log offset."),
    ],
    topic: Annotated[str, typer.Option(help="Only messages of this topic.")] = "",
    store: Annotated[
        Path | None,
        typer.Option(help="Search the store in this folder, in use or not; default: query a broker."),
    ] = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all log records of a message or order, with times, intervals and log offsets.

    Example: tidewheel explain order:17 --store ./store
    """
    told = from_store(store, name, topic) if store else from_broker(http, name, topic)
    output.print_json(told) if as_json else show(told)
    if not told["events"]:
        raise typer.Exit(REFUSED)
    if not store and not as_json:
        for one in waiting(broker_at(http), told):
            output.show(reason(one))


def from_store(store: Path, name: str, topic: str) -> dict[str, Any]:
    """Search the files of a store."""
    from services.explain.evidence import SearchedLog
    from services.explain.explain import explain as search

    return search(SearchedLog.at(store), name, topic).as_json()


def from_broker(http: str | None, name: str, topic: str) -> dict[str, Any]:
    """Query a broker, which searches its log."""
    found: dict[str, Any] = broker_at(http).search("explain", name=name, topic=topic)
    return found


def show(told: dict[str, Any]) -> None:
    """Print the events in log order and the current state of each message."""
    events, messages = told["events"], told["messages"]
    searched = f"log offsets {int(told['first_offset']):,} to {int(told['end_offset']):,} of {told['store']}"
    output.show(
        f"{told['name']}: {counted(events, 'event')} of {counted(messages, 'message')}, in {searched}", ""
    )
    if events:
        output.show(*lines(events), "")
        output.print_table(
            ("topic", "message", "now"), ((one["topic"], one["message_id"], one["state"]) for one in messages)
        )
    for line in limits(told):
        output.show(line)
    if told["is_cut"]:
        output.say("The name has more records than are told here. Narrow it with --topic.")


def limits(told: dict[str, Any]) -> list[str]:
    """Return which parts of the log were not searched, because the time of a search was over."""
    found = []
    if searched_from_ms := told.get("searched_from_ms"):
        found.append(
            f"Only the log from {exactly(int(searched_from_ms))} on was searched: a search ends after 10 "
            f"seconds. Older events are {'missing' if told['events'] else 'not known'}. On the machine of "
            "the broker, --store FOLDER searches the whole log."
        )
    if followed_until_ms := told.get("followed_until_ms"):
        found.append(
            f"Acknowledgements and other later events were searched only up to "
            f"{exactly(int(followed_until_ms))}: a search ends after 10 seconds. Later ones are missing, "
            "also in the states. --topic searches for fewer of them, and --store FOLDER for all."
        )
    return found


def reason(one: Waiting) -> str:
    """Return why a group has not finished a message."""
    return f"not done by group {one.group}: {one.why}" if one.group else f"not received: {one.why}"


def lines(events: list[dict[str, Any]]) -> list[str]:
    """Return a line for each event with its time, the interval since the previous event, its log offset, and
    a description.

    For the store of a cluster, the lines also show the epoch.
    """
    width = max(len(event["topic"]) for event in events)
    epochs = [epoch(event["epoch"], event["leader"]) for event in events]
    columns = (
        justified([exactly(int(event["store_ms"])) for event in events]),
        justified([gap(int(event["gap_ms"])) for event in events]),
        justified([f"@{int(event['physical_offset']):,}" for event in events]),
        *([justified(epochs)] if any(epochs) else ()),
        [f"{event['topic']:<{width}}" for event in events],
        [sentence(event) for event in events],
    )
    return ["  ".join(parts) for parts in zip(*columns, strict=True)]


def sentence(event: dict[str, Any]) -> str:
    """Return the description of an event, such as: acknowledged: by group shop-carts, queue 1 offset 0."""
    due = f"due {exactly(int(event['due_ms']))}" if event["what"] == "armed" and event["due_ms"] else ""
    is_placed = event["queue_id"] is not None
    place = f"queue {event['queue_id']} offset {event['queue_offset']}" if is_placed else ""
    return f"{event['what']}: {', '.join(part for part in (due, event['note'], place) if part)}"


def epoch(number: int | None, leader: str) -> str:
    """Return the epoch of an event in a cluster and the leader of the epoch.

    The result is empty if the epoch is unknown.
    """
    if number is None:
        return ""
    return f"epoch {number}{leader and f' by {leader}'}" if number else "alone"


def justified(texts: list[str]) -> list[str]:
    """Return the texts right-aligned to the same width."""
    width = max(map(len, texts))
    return [f"{one:>{width}}" for one in texts]


def gap(gap_ms: int) -> str:
    """Return the interval since the previous event. It is negative if a clock was set back."""
    return "" if gap_ms == 0 else f"+{span(gap_ms)}" if gap_ms > 0 else f"-{span(-gap_ms)}"


def counted(things: list[Any], word: str) -> str:
    """Return the number of items with a noun, such as "1 event" or "2 events"."""
    return f"{len(things):,} {word}{'' if len(things) == 1 else 's'}"
