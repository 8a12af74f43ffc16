"""`tidewheel topic`: commands to list, show, create, alter, hold, release, purge, move and delete topics."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from services.cli.terminal import bulk, output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.bulk import Bulk, Run, filter_option, per_second, whole_per_second
from services.cli.terminal.listing import lists
from services.http.api import Api
from services.settings.errors import InputUnreadable
from services.status.callers import user_of
from services.status.judgement import counted
from services.times.display import exactly, span
from tidewheel.errors import AccessRefused, ClientMistake, ConfigurationError, RefusedByState

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List, create, show and change topics.\n\nExample: tidewheel topic create orders --type delay",
)


TASKS = Bulk(
    "moves",
    "topic",
    "move FROM TO --yes",
    ("from", "to"),
    lambda task: (task["source"], task["target"]),
    "queue:offset",
)


JOURNAL_LOOK: Final = 200
"""The number of journal entries that are searched for the user of a hold."""


class TopicType(StrEnum):
    """The message type of a topic."""

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
        "--type",
        help="Messages that the topic accepts; mixed accepts all except priority and lite.",
        case_sensitive=False,
    ),
]


@lists(app)
def list_topics(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """List the topics.

    Example: tidewheel topic ls --json
    """
    topics = broker_at(http).get("topics", counts="true")["topics"]
    if as_json:
        output.print_json(topics)
        return
    rows = (
        (one["name"], one["message_type"].lower(), one["queue_count"], f"{one['message_count']:,}")
        for one in topics
    )
    if topics:
        output.print_table(("topic", "takes", "queues", "messages"), rows)
    else:
        output.say("no topics; begin with: tidewheel topic create --help")


@app.command()
def create(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Letters, digits, %, | - and _; @FILE reads names from a file, one per line, - from stdin.",
        ),
    ],
    message_type: TypeOption = TopicType.MIXED,
    queues: Annotated[
        int | None, typer.Option(help="Number of queues; default: the setting of the broker.")
    ] = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create topics with the same settings. A topic that already exists with these settings is not changed.

    If some of the topics are refused, the others are created, and the exit code is that of the first refusal.
    With --json, a single NAME prints an object, and several names print a list.

    Example: tidewheel topic create order-timeouts --type delay --queues 4
    """
    api, settings = broker_at(http), {"message_type": message_type.name, "queue_count": queues}
    wanted = list(names_of(names))
    if wanted == names and len(names) == 1:
        topic = api.post("topics", body={"name": names[0], **settings})
        output.print_json(topic) if as_json else output.show(topic_line(topic))
        return
    created, refused = [], []
    for name in wanted:
        try:
            created.append(api.post("topics", body={"name": name, **settings}))
        except (ClientMistake, RefusedByState) as error:
            refused.append(error)
            output.say(f"{error.code} {name}: {error}")
            continue
        if not as_json:
            output.show(topic_line(created[-1]))
    if as_json:
        output.print_json(created)
    if refused:
        output.say(f"{len(created)} of {len(wanted)} topics are there, {len(refused)} refused")
        raise typer.Exit(refused[0].exit_code)


def names_of(said: list[str]) -> Iterator[str]:
    """Yield the topic names from the arguments, files or stdin. Raises `InputUnreadable`."""
    for one in said:
        if one == "-" or one.startswith("@"):
            yield from filter(None, map(str.strip, text_of(one).splitlines()))
        else:
            yield one


def text_of(said: str) -> str:
    """Return the content of stdin (-) or a file (@FILE). Raises `InputUnreadable`."""
    try:
        return sys.stdin.read() if said == "-" else Path(said[1:]).read_text()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        where = "stdin" if said == "-" else said[1:]
        raise InputUnreadable(f"{where}: {reason}. Give names of topics, one a line, in UTF-8.") from error


def topic_line(topic: dict[str, Any]) -> str:
    """Return a description of a topic as one line."""
    kept = f", messages up to {own_retention(topic)} old" if own_retention(topic) else ""
    queues = counted(topic["queue_count"], "queue")
    return f"{topic['name']} takes {topic['message_type'].lower()}, {queues}{kept}"


def own_retention(topic: dict[str, Any]) -> str:
    """Return the retention that is set for the topic, or an empty string."""
    return span(int(topic["retention_ms"])) if "retention_ms" in topic else ""


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The topic.")],
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a topic and the offsets of its queues.

    Example: tidewheel topic show order-timeouts
    """
    topic = broker_at(http).get("topics", name, oldest="true")
    if as_json:
        output.print_json(topic)
        return
    is_lite = topic["message_type"] == TopicType.LITE.name
    lite_topics = f", lite topics: {topic['lite_topics']:,}" if is_lite else ""
    output.show(f"{topic['name']} takes {topic['message_type'].lower()}{lite_topics}")
    own = f"{own_retention(topic)} of this topic; " if own_retention(topic) else ""
    output.show(f"retention: {own}{retention(topic['retention'])}")
    if topic.get("hold"):
        output.show(hold_line(topic["hold"]))
    rows = (
        (one["queue_id"], one["min_offset"], one["end_offset"], stored(one["oldest_ms"]))
        for one in topic["queues"]
    )
    output.print_table(("queue", "first", "end", "first stored"), rows)


YesOption = Annotated[
    bool, typer.Option("--yes", help="Make the change; without this option, only show its extent.")
]
DiscardOption = Annotated[
    bool, typer.Option("--discard", help="Also discard messages that groups have not finished.")
]
UnfinishedOption = Annotated[
    int | None,
    typer.Option(min=0, help="Number of unfinished messages that you saw; with more, nothing is discarded."),
]
ReasonOption = Annotated[str, typer.Option(help="Reason, which is stored in the journal.")]
NameArgument = Annotated[str, typer.Argument(help="The topic.")]


@app.command()
def alter(
    name: NameArgument,
    message_type: Annotated[
        TopicType | None,
        typer.Option(
            "--type", help="The new type: mixed, or, for a mixed topic, another type.", case_sensitive=False
        ),
    ] = None,
    queues: Annotated[
        int | None, typer.Option(help="The new number of queues, which must be larger.")
    ] = None,
    retained: Annotated[
        str,
        typer.Option(
            "--retention",
            help="Deliver no message that is older than this: 7d, 12h; none: as long as the log has it.",
        ),
    ] = "",
    unfinished: UnfinishedOption = None,
    reason: ReasonOption = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Let a retention discard messages, unfinished ones too, at once.")
    ] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the type or the retention of a topic, or add queues.

    The command is refused if messages would be lost or reordered. A retention that would discard messages
    immediately requires --yes; without it, only the effect is shown. The retention discards messages
    regardless of whether groups have processed them.

    Example: tidewheel topic alter orders --queues 16
    """
    if message_type is None and queues is None and not retained:
        raise ConfigurationError("Give --type, --queues, --retention or some of them.")
    if unfinished is not None and not retained:
        raise ConfigurationError("--unfinished limits what --retention discards: give --retention, too.")
    api = broker_at(http)
    if retained and not yes and shows_expired(api.get("topics", name, "use", retention=retained), as_json):
        return
    given = {"message_type": message_type and message_type.name, "queue_count": queues}
    given |= {"retention": retained, "discard": yes if retained else None, "reason": reason}
    body: dict[str, Any] = {field: value for field, value in given.items() if value}
    if unfinished is not None:
        body["seen"] = {"unfinished": unfinished}
    topic = api.put("topics", name, body=body)
    if as_json:
        output.print_json(topic)
        return
    output.show(topic_line(topic))
    if (expired := topic["expired"]) and expired["messages"]:
        output.show(discarded(expired))


@app.command()
def purge(
    name: NameArgument,
    discard: DiscardOption = False,
    unfinished: UnfinishedOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Discard the messages of a topic that all groups have processed or, with --discard, all messages.

    Timers and open transactions are not affected. The disk space is released later by retention.

    Example: tidewheel topic purge orders --discard --unfinished 12 --yes
    """
    api = broker_at(http)
    if not yes:
        use = api.get("topics", name, "use")
        show_use(use, as_json)
        if not would_be_refused(use, "purge", discard):
            output.say_undone(use["messages"], "purge it", yes_flags(use, discard))
        return
    seen = {} if unfinished is None else {"seen": {"unfinished": unfinished}}
    use = api.post("topics", name, "purge", body={"discard": discard, "reason": reason} | seen)
    output.print_json(use) if as_json else output.show(f"{name} is empty; {discarded(use)}")


@app.command()
def delete(
    name: NameArgument,
    discard: DiscardOption = False,
    unfinished: UnfinishedOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic. The command is refused as long as timers, transactions or schedules use the topic.

    Groups no longer receive the topic, and their dead letters are kept. If topics are created automatically,
    a client that still sends to the topic creates it again.

    Example: tidewheel topic delete orders --yes
    """
    api = broker_at(http)
    if not yes:
        use = api.get("topics", name, "use")
        show_use(use, as_json)
        if not would_be_refused(use, "delete", discard):
            output.say_undone(ending="delete it", flags=yes_flags(use, discard))
        return
    seen = "" if unfinished is None else str(unfinished)
    given = {"discard": "true" if discard else "", "reason": reason, "seen_unfinished": seen}
    use = api.delete("topics", name, **{field: value for field, value in given.items() if value})
    output.print_json(use) if as_json else output.show(f"{name} is deleted; {discarded(use)}")


@app.command()
def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The topic of the messages.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The topic to move them to.")],
    key: Annotated[str, filter_option("A message key or message id.", "--key")] = "",
    tag: Annotated[str, filter_option("The tag of the messages.", "--tag")] = "",
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="A property of the messages; may be repeated.",
            rich_help_panel="Filters",
        ),
    ] = None,
    rate: bulk.RateOption = "",
    reason: ReasonOption = "",
    yes: bulk.YesOption = False,
    limit: bulk.LimitOption = None,
    dry_run: bulk.DryRunOption = False,
    detach: bulk.DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move the unprocessed messages of a topic, or those that match, to another topic, as a task.

    Each message is copied to TO and then acknowledged for all groups of FROM. Messages that are leased by a
    consumer are skipped.

    Example: tidewheel topic move orders orders-slow --tag bulk --rate 50/s --yes
    """
    given: dict[str, Any] = {"key": key, "tag": tag, "property": properties}
    wanted: dict[str, Any] = {
        "source": source,
        "target": target,
        "filter": {name: value for name, value in given.items() if value},
        "rate_per_second": per_second(rate),
        "reason": reason,
    }
    run = Run(yes, dry_run, detach, as_json, limit)
    said = f"of {source} to {target}"
    TASKS.start(
        broker_at(http), wanted, run, lambda preview: f"would move {run.extent(preview, 'message')} {said}"
    )


@app.command()
def tasks(
    task: bulk.TaskArgument = "",
    stop: bulk.StopOption = False,
    items: bulk.ItemsOption = False,
    limit: bulk.ItemsLimitOption = bulk.ITEMS_SHOWN,
    after: bulk.ItemsAfterOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the tasks that move messages since the broker's start, show one task, or stop a task.

    With --items, list the messages that a task has moved. This also works after a restart.

    Example: tidewheel topic tasks 3f2a9c01b7de --stop
    """
    TASKS.show_tasks(broker_at(http), task, stop, as_json, items, limit, after)


def shows_expired(use: dict[str, Any], as_json: bool) -> bool:
    """Print what a retention would discard at once. Return whether it discards messages."""
    expired = use["expired"]
    if not expired["messages"]:
        return False
    if as_json:
        output.print_json(use)
    else:
        output.show(
            f"{expired['messages']:,} of {counted(use['messages'], 'message')} would be discarded at once, "
            f"{expired['unfinished']:,} of them unfinished"
        )
    output.say_undone(ending="discard them", flags=yes_flags(expired, discard=True))
    return True


@app.command()
def hold(
    name: NameArgument,
    reason: ReasonOption = "",
    yes: YesOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold the delayed messages of a topic when they become due, until tidewheel topic release.

    Held messages stay pending and can be cancelled or moved. `timer fire` delivers a message despite the
    hold. Other messages and scheduled messages are not affected.

    Example: tidewheel topic hold orders --reason "the shop is closed" --yes
    """
    api = broker_at(http)
    if not yes:
        use = api.get("topics", name, "use")
        show_use(use, as_json)
        if is_held(use):
            output.say(f"{held_line(api, use)}: nothing to do. It ends with:  tidewheel topic release {name}")
        else:
            output.say_undone(ending="hold its timers")
        return
    use = api.post("topics", name, "hold", body={"reason": reason})
    said = f"the timers of {name} are held when they are due; {counted(use['timers'], 'timer')} pending"
    output.print_json(use) if as_json else output.show(said)


@app.command()
def release(
    name: NameArgument,
    rate: Annotated[str, typer.Option(help=bulk.WHOLE_RATE_HELP)] = "",
    reason: ReasonOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver the held messages of a topic, earliest due first. Repeat the command to change the --rate.

    Messages that become due later are delivered on time, regardless of the rate.

    Example: tidewheel topic release orders --rate 500/s --reason "the shop is open"
    """
    pace_s = whole_per_second(rate)
    use = broker_at(http).post("topics", name, "release", body={"per_second": pace_s, "reason": reason})
    held, pace = (use["hold"] or {"held": 0})["held"], f"{pace_s:,} per second" if pace_s else "at once"
    are = "is" if held == 1 else "are"
    said = f"{name} is released; {counted(held, 'held message')} {are} delivered, {pace}"
    output.print_json(use) if as_json else output.show(said)


def hold_line(hold: dict[str, Any]) -> str:
    """Return a description of a hold as one line."""
    held, because = int(hold["held"]), f": {hold['reason']}" if hold["reason"] else ""
    if hold["per_second"] is None:
        return f"timers held since {exactly(int(hold['since_ms']))}{because}; {due_of(held)}"
    pace = f"{hold['per_second']:,} per second" if hold["per_second"] else "at once"
    return f"timers released, {pace}; {counted(held, 'held one')} {'is' if held == 1 else 'are'} left"


def due_of(held: int) -> str:
    """Return the number of held timers that are due, as text."""
    return "1 is due and waits" if held == 1 else f"{held:,} are due and wait"


def is_held(use: dict[str, Any]) -> bool:
    """Return whether the timers of a topic are held, and not being released."""
    return use["hold"] is not None and use["hold"]["per_second"] is None


def held_line(api: Api, use: dict[str, Any]) -> str:
    """Return a line with the time of a hold, its user if the journal may be read, and its reason."""
    hold, user = use["hold"], ""
    with suppress(AccessRefused):
        entries = api.get("journal", about=use["name"], limit=JOURNAL_LOOK)["entries"]
        holds = (
            user_of(one)
            for one in entries
            if (one["verb"], one["verdict"]) == ("topics hold", "done")
            and one["about"].split(" ")[0] == f"topic={use['name']}"
        )
        user = next(holds, "")
    since, by = exactly(int(hold["since_ms"])), f" by {user}" if user else ""
    because = f" ({hold['reason']})" if hold["reason"] else ""
    return f"the timers of {use['name']} are held since {since}{by}{because}"


def show_use(use: dict[str, Any], as_json: bool) -> None:
    """Print the use of a topic."""
    if as_json:
        output.print_json(use)
    else:
        output.show(
            topic_line(use),
            f"messages in its queues: {use['messages']:,}, unfinished: {use['unfinished']:,}",
            f"timers: {use['timers']:,}; open or expired halves: {use['halves']:,}; "
            f"schedules: {', '.join(use['schedules']) or 'none'}",
            *([hold_line(use["hold"])] if use["hold"] else []),
        )
        rows = ((one["group"], one["unfinished"], one["dead_letters"]) for one in use["groups"])
        output.print_table(("group", "unfinished", "dead letters"), rows)


def would_be_refused(use: dict[str, Any], verb: str, discard: bool) -> bool:
    """Return whether a purge or a deletion with --yes would be refused, and print the reason if so."""
    name = use["name"]
    waiting = [] if verb == "purge" else list(waiting_parts(use))
    unfinished = 0 if discard else use["unfinished"]
    flags = f"--discard {yes_flags(use, discard=True)}" if unfinished else yes_flags(use, discard)
    messages = f" with its {counted(unfinished, 'unfinished message')}" if unfinished else ""
    if waiting:
        output.say(
            f"nothing was done: it would be refused, because {name} is the topic of {'; '.join(waiting)}. "
            f"End them first, then add {flags} to {verb} it{messages}"
        )
    elif unfinished:
        output.say_undone(ending=f"{verb} it{messages}", flags=flags)
    return bool(waiting or unfinished)


def yes_flags(use: dict[str, Any], discard: bool) -> str:
    """Return the options that make a change which a preview has shown, and no larger one.

    A change that does not discard unfinished messages needs no limit, because the broker refuses it if there
    are any.
    """
    return f"--unfinished {use['unfinished']} --yes" if discard else "--yes"


def waiting_parts(use: dict[str, Any]) -> Iterator[str]:
    """Yield what must end before a topic can be deleted, each with the command that ends or lists it."""
    name = use["name"]
    if use["timers"]:
        yield f"{counted(use['timers'], 'timer')} (tidewheel timer cancel --all --topic {name})"
    if use["halves"]:
        halves = "open or expired half" if use["halves"] == 1 else "open or expired halves"
        yield f"{use['halves']:,} {halves} (tidewheel txn ls --topic {name})"
    if use["schedules"]:
        yield f"{counted(len(use['schedules']), 'schedule')} (tidewheel schedule rm NAME)"


def discarded(use: dict[str, Any]) -> str:
    """Return the number of messages that a purge or a deletion has discarded, as text."""
    were = "was" if use["messages"] == 1 else "were"
    return f"{counted(use['messages'], 'message')} {were} discarded, {use['unfinished']:,} of them unfinished"


def stored(at_ms: str | None) -> str:
    """Return the storage time of a queue's first message, or a dash for an empty queue."""
    return "-" if at_ms is None else exactly(int(at_ms))


def retention(limits: dict[str, Any]) -> str:
    """Return the retention limits, which are the same for all topics."""
    age = span(int(limits["age_ms"])) if limits["age_ms"] else ""
    size = f"{int(limits['log_bytes_max']):,} bytes of log" if limits["log_bytes_max"] else ""
    return " or ".join(filter(None, (age, size))) or "nothing is deleted"
