"""`tidewheel msg`: messages by the names that people know them by."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

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
    """Show the messages with a key or id, newest first: how each stands, where it is stored, what it says.

    A delayed message is listed as the timer, which waits or has ended, and as what was delivered.

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


def lines(message: dict[str, Any]) -> tuple[str, ...]:
    """Return a message as a few lines: its place, its names, its body."""
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
    """Return how a message stands, such as: CANCELLED  by a call, because: paid; its place in a queue."""
    state, due_ms = message.get("state", "stored"), message["delivery_ms"]
    if state == "stored":
        return f"{message['stored_topic']} queue {message['queue_id']} offset {message['queue_offset']}"
    due = [f"due {exact(due_ms)} ({away(int(due_ms))})"] if state == "pending" and due_ms else []
    due += [f"was due {exact(due_ms)}"] if state != "pending" and due_ms else []
    due += [f"ended {exact(message['ended_ms'])}"] if message.get("ended_ms") else []
    note = [message["note"]] if message["note"] else []
    return "  ".join([state.upper(), message["topic"], *due, *note])


def exact(moment_ms: str) -> str:
    """Return local wall time with its date, to the millisecond."""
    return datetime.fromtimestamp(int(moment_ms) / 1000).isoformat(" ", "milliseconds")
