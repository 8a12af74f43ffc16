"""`tidewheel tail`: watch a topic without consuming its messages and without effect on consumer groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, broker_at
from services.cli.terminal.times import parse_past_ms
from services.http.api import Api
from tidewheel.durations import SPAN
from tidewheel.errors import ConfigurationError

app = typer.Typer(add_completion=False)

WAIT_MS = 15_000
BATCH = 200
LAST_MAX = 1_000


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(help="The topic to watch.")],
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Also show messages that are already stored.")
    ] = False,
    since: Annotated[
        str, typer.Option(help="Also show messages stored since 10m (ago), 09:30 or 2026-11-22T09:00.")
    ] = "",
    last: Annotated[
        int, typer.Option("--last", help="Also show this number of last messages.", min=0, max=LAST_MAX)
    ] = 0,
    tag: Annotated[str, typer.Option(help="Only messages with this tag.")] = "",
    key: Annotated[str, typer.Option(help="Only messages with this message key.")] = "",
    limit: Annotated[
        int | None,
        typer.Option(help="Stop after this number of messages; default: continue until Ctrl-C.", min=1),
    ] = None,
    http: HttpOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")] = False,
) -> None:
    """Show messages as they arrive, without consuming them, until Ctrl-C.

    Example: tidewheel tail order-timeouts --since 10m --limit 10
    """
    api = broker_at(http)
    shown = 0
    if last and (from_start or since):
        raise ConfigurationError("--last, --from-start and --since all say where to begin: give one.")
    found = newest(api, topic, last) if last else arrivals(api, topic, start(api, topic, from_start, since))
    for message in found:
        if (tag and message["tag"] != tag) or (key and key not in message["keys"]):
            continue
        output.print_json_line(message) if as_json else output.show(line(message))
        shown += 1
        if shown == limit:
            return


def start(api: Api, topic: str, from_start: bool, since: str) -> str:
    """Return the start positions as a parameter of a request."""
    if since:
        # a time in the past is intended in any case
        said = f"{since} ago" if re.fullmatch(SPAN, since.strip()) else since
        since_ms = parse_past_ms(said, "--since")
        queues, offset = api.get("topics", topic, since_ms=since_ms)["queues"], "since_offset"
    else:
        queues, offset = api.get("topics", topic)["queues"], "min_offset" if from_start else "end_offset"
    return ",".join(f"{queue['queue_id']}:{queue[offset]}" for queue in queues)


def newest(api: Api, topic: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield the last messages of a topic, oldest first, and then new messages."""
    answer = api.get("topics", topic, "newest", limit=count)
    yield from reversed(answer["messages"])
    yield from arrivals(api, topic, answer["after"])


def arrivals(api: Api, topic: str, after: str) -> Iterator[dict[str, Any]]:
    """Yield new messages from the given positions on. The iterator is infinite."""
    while True:
        answer = api.get("topics", topic, "arrivals", after=after, limit=BATCH, wait_ms=WAIT_MS)
        yield from answer["messages"]
        after = answer["after"]


def line(message: dict[str, Any]) -> str:
    """Return a message as one line: storage time, position, names, and body."""
    stored = datetime.fromtimestamp(int(message["store_ms"]) / 1000).strftime("%H:%M:%S.%f")[:-3]
    names = " ".join([*message["keys"], *([f"#{message['tag']}"] if message["tag"] else [])])
    place = f"{message['queue_id']}@{message['queue_offset']}"
    return f"{stored}  {place:>8}  {names:<20}  {message.get('body', '(binary)')}"
