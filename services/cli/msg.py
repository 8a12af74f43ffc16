"""`tidewheel msg`: messages by the names that people know them by."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from services.broker.errors import MessageNotFound
from services.cli import output
from services.cli.api import Api, HttpOption, JsonOption

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Find messages by key or id.\n\nExample: tidewheel msg show order:17 --topic order-timeouts",
)


@app.callback()
def msg() -> None:
    """Find messages by key or id."""


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="A key of the message, or its message id.")],
    topic: Annotated[str, typer.Option(help="The topic it was sent to.")],
    limit: Annotated[int, typer.Option(help="Show at most so many, the newest.", min=1)] = 20,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where the messages with a key or id are stored, newest first, and what they say.

    Example: tidewheel msg show order:17 --topic order-timeouts
    """
    answer = Api(http).get("messages", topic=topic, key=key, limit=limit)
    found = answer["messages"]
    if not found:
        raise MessageNotFound(f"Topic {topic} holds none with the key or message id {key!r}.")
    if as_json:
        output.print_json(found)
        return
    for number, message in enumerate(found):
        output.show(*([""] if number else []), *lines(message))
    if answer["cut"]:
        output.say("older ones are too large to be shown in the same answer")


def lines(message: dict[str, Any]) -> tuple[str, ...]:
    """Return a message as a few lines: its place, its names, its body."""
    stored = datetime.fromtimestamp(int(message["store_ms"]) / 1000).isoformat(" ", "milliseconds")
    place = f"{message['stored_topic']} queue {message['queue_id']} offset {message['queue_offset']}"
    names = [f"id {message['message_id']}"]
    names += [f"keys {' '.join(message['keys'])}"] if message["keys"] else []
    names += [f"tag {message['tag']}"] if message["tag"] else []
    return (
        f"{place}  log {message['physical_offset']}  stored {stored}",
        "  " + "  ".join(names),
        f"  {message.get('body', '(binary)')}",
    )
