"""`tidewheel topic`: what topics there are, and new ones."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from services.cli import output
from services.cli.api import Api, HttpOption, JsonOption
from services.cli.listing import lists

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List, create and show topics.\n\nExample: tidewheel topic create order-timeouts --type delay",
)


class TopicType(StrEnum):
    """What a topic takes."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    MIXED = "mixed"
    PRIORITY = "priority"
    LITE = "lite"


TypeOption = Annotated[
    TopicType,
    typer.Option(
        "--type", help="What it takes; mixed takes all but priority and lite.", case_sensitive=False
    ),
]


@lists(app)
def list_topics(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """List the topics.

    Example: tidewheel topic ls --json
    """
    topics = Api(http).get("topics")["topics"]
    if as_json:
        output.print_json(topics)
        return
    rows = ((topic["name"], topic["message_type"].lower(), topic["queue_count"]) for topic in topics)
    if topics:
        output.print_table(("topic", "takes", "queues"), rows)
    else:
        output.say("no topics; begin with: tidewheel topic create --help")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Letters, digits, %, | - and _.")],
    message_type: TypeOption = TopicType.MIXED,
    queues: Annotated[int | None, typer.Option(help="How many queues; else as the broker is set.")] = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a topic.

    Example: tidewheel topic create order-timeouts --type delay --queues 4
    """
    wanted = {"name": name, "message_type": message_type.name, "queue_count": queues}
    topic = Api(http).post("topics", body=wanted)
    if as_json:
        output.print_json(topic)
    else:
        print(f"{topic['name']} takes {topic['message_type'].lower()}, {topic['queue_count']} queues")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The topic.")],
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a topic and how far its queues are.

    Example: tidewheel topic show order-timeouts
    """
    topic = Api(http).get("topics", name)
    if as_json:
        output.print_json(topic)
        return
    is_lite = topic["message_type"] == TopicType.LITE.name
    lite_topics = f", lite topics: {topic['lite_topics']:,}" if is_lite else ""
    print(f"{topic['name']} takes {topic['message_type'].lower()}{lite_topics}")
    rows = ((queue["queue_id"], queue["min_offset"], queue["end_offset"]) for queue in topic["queues"])
    output.print_table(("queue", "first", "end"), rows)
