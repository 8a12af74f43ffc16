"""`tidewheel msg`: search for messages by key, id, timer key, or content."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Annotated, Any

import typer

from commitlog.records.kinds import DEAD_LETTER_PREFIX
from services.broker.spine.errors import MessageNotFound
from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.times.display import away

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Find messages by key, id or timer key.\n\n"
    "Example: tidewheel msg show order:17 --topic order-timeouts",
)


@app.callback()
def msg() -> None:
    """Find messages by key, id or timer key."""


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="A message key, a message id, or a timer key.")],
    topic: Annotated[str, typer.Option(help="The topic of the message.")],
    limit: Annotated[int, typer.Option(help="Largest number to show; the newest are shown.", min=1)] = 20,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the messages with a key or id, newest first, with their state, position and content.

    A delayed message is listed twice: as a timer, and as the delivered message.

    Example: tidewheel msg show order:17 --topic order-timeouts
    """
    answer = broker_at(http).get("messages", topic=topic, key=key, limit=limit)
    found = answer["messages"]
    if not found:
        raise MessageNotFound(f"Topic {topic} holds none with the key, message id or timer key {key!r}.")
    if as_json:
        output.print_json(found)
        return
    for number, message in enumerate(found):
        output.show(*([""] if number else []), *lines(message))
    if answer["cut"]:
        output.say("older ones are too large to be shown in the same answer")


@app.command()
def search(
    topic: Annotated[str, typer.Argument(help="The topic; of dead letters %DLQ%GROUP.")],
    text: Annotated[str, typer.Option(help="The body contains this text.")] = "",
    json_path: Annotated[
        str, typer.Option("--json-path", help="The body is JSON with PATH or PATH=VALUE: to.city=Rome")
    ] = "",
    properties: Annotated[str, typer.Option("--property", help="NAME or NAME=VALUE.")] = "",
    error: Annotated[str, typer.Option(help="Part of the reason or an error of a dead letter.")] = "",
    since: Annotated[str, typer.Option("--from", help="Stored since 2h ago, or a moment with a zone.")] = "",
    until: Annotated[str, typer.Option(help="Stored before.")] = "",
    limit: Annotated[int, typer.Option(help="Largest number of matches.", min=1)] = 20,
    http: HttpOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")] = False,
) -> None:
    """Search the messages of a topic by content, oldest first, until Ctrl-C.

    Content is not indexed, so all messages in the time range are read. Pending timers are not searched. Exit
    code 4: no message matches.

    Example: tidewheel msg search orders --json-path customer.city=Rome --from '2h ago'
    """
    given = {"text": text, "json": json_path, "property": properties, "error": error}
    asked = {name: said for name, said in (given | {"from": since, "until": until}).items() if said}
    broker, after, found, scanned = broker_at(http), "", 0, 0
    while after is not None and found < limit:
        part = broker.search("topics", topic, "search", **asked, after=after, limit=min(limit - found, 100))
        after, scanned = part["after"], scanned + part["scanned"]
        for message in part["messages"]:
            if as_json:
                output.print_json_line(message)
            else:
                output.show(*([""] if found else []), *lines(message | {"stored_topic": message["topic"]}))
            found += 1
    output.say(f"{found:,} of {scanned:,} messages match" + ("" if after is None else "; there may be more"))
    if not found:
        if not topic.startswith(DEAD_LETTER_PREFIX):
            listing = shlex.join(["tidewheel", "timer", "ls", "--topic", topic])
            output.say(f"pending timers are not searched:  {listing}")
        raise typer.Exit(MessageNotFound.exit_code)


def lines(message: dict[str, Any]) -> tuple[str, ...]:
    """Return the description of a message: its position, names and body."""
    names = [f"id {message['message_id']}"]
    names += [f"keys {' '.join(message['keys'])}"] if message["keys"] else []
    names += [f"tag {message['tag']}"] if message["tag"] else []
    timer_key = message["properties"].get("TW_TIMER_KEY", "")
    names += [f"timer key {timer_key}"] if timer_key else []
    return (
        f"{standing(message)}  log {message['physical_offset']}  stored {exact(message['store_ms'])}",
        "  " + "  ".join(names),
        f"  {message.get('body', '(binary)')}",
    )


def standing(message: dict[str, Any]) -> str:
    """Return the state of a message, such as:

    CANCELLED  by a call, because: paid; or its position in a queue.
    """
    state, due_ms = message.get("state", "stored"), message["delivery_ms"]
    place = f"{message['stored_topic']} queue {message['queue_id']} offset {message['queue_offset']}"
    if state == "stored":
        return place
    if state == "discarded":
        return f"DISCARDED  {place}  {message['note']}"
    due = [f"due {exact(due_ms)} ({away(int(due_ms))})"] if state == "pending" and due_ms else []
    due += [f"was due {exact(due_ms)}"] if state != "pending" and due_ms else []
    due += [f"ended {exact(message['ended_ms'])}"] if message.get("ended_ms") else []
    note = [message["note"]] if message["note"] else []
    return "  ".join([state.upper(), message["topic"], *due, *note])


def exact(moment_ms: str) -> str:
    """Return a local date and time with milliseconds."""
    return datetime.fromtimestamp(int(moment_ms) / 1000).isoformat(" ", "milliseconds")
