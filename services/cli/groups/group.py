"""`tidewheel group`: progress and consumers of consumer groups, and commands to pause, configure and reset
them.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.groups.group_views import (
    CLIENTS,
    EMPTY,
    GROUPS,
    LAGS,
    MOVES,
    QUEUES,
    client_rows,
    group_lines,
    group_row,
    lag_rows,
    move_rows,
    queue_rows,
    reset_line,
    retries,
)
from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.durations import parse_ms
from services.cli.terminal.listing import lists
from services.cli.terminal.times import parse_past_ms
from services.status.judgement import counted, why_behind
from tidewheel.errors import ConfigurationError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at consumer groups: how far they are and who consumes; pause, set and move them.\n\n"
    "Example: tidewheel group lag",
)

PLACES = "earliest, latest, 30m ago, 09:30 (today), 2026-11-22T09:00 (local), or offset:1200."

NameArgument = Annotated[str, typer.Argument(help="The consumer group.")]
AttemptsOption = Annotated[
    int | None, typer.Option("--attempts", help="Attempts before a message is a dead letter.", min=1)
]
RetryAfterOption = Annotated[
    str, typer.Option("--retry-after", help="Delays between attempts; the last delay is repeated: 1s,5s,1m")
]
FifoRunOption = Annotated[
    int | None,
    typer.Option("--fifo-run", help="Largest number of messages of one message group in a receive.", min=1),
]
LiteExclusiveOption = Annotated[
    bool | None,
    typer.Option(
        "--lite-exclusive/--lite-shared",
        help="Give a lite topic only to its last subscriber in the group.",
    ),
]
TopicOption = Annotated[str, typer.Option(help="One topic of the group; default: all topics.")]


@lists(app)
def list_groups(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """List the consumer groups. Only the first topics of each group are shown; --json shows all topics.

    Example: tidewheel group ls
    """
    found = broker_at(http).get("groups")["groups"]
    if as_json:
        output.print_json(found)
    elif found:
        output.print_table(GROUPS, map(group_row, found))
    else:
        output.say(EMPTY)


@app.command()
def show(name: NameArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show the policy of a group and its offsets in every queue.

    Example: tidewheel group show shop
    """
    group = broker_at(http).get("groups", name)
    tell(group, as_json)


@app.command()
def lag(
    name: Annotated[
        str, typer.Argument(help="A consumer group, shown by queue; default: all groups, by topic.")
    ] = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the number of unprocessed messages of a group, and the age of the oldest.

    Example: tidewheel group lag shop
    """
    api = broker_at(http)
    if name:
        group = api.get("groups", name)
        if as_json:
            output.print_json(group["queues"])
            return
        output.print_table(QUEUES, queue_rows(group["queues"]))
        if group["lag"] and (why := why_behind(group)):
            output.show("", f"why: {why}")
        return
    groups = api.get("groups", queues="true")["groups"]
    if as_json:
        output.print_json(groups)
    elif groups:
        output.print_table(LAGS, lag_rows(groups))
    else:
        output.say(EMPTY)


@app.command()
def clients(name: NameArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show the consumers of a group: their libraries, leased messages, and last calls.

    Example: tidewheel group clients shop
    """
    answer = broker_at(http).get("groups", name, "clients")
    if as_json:
        output.print_json(answer)
        return
    if answer["consumers"]:
        output.print_table(CLIENTS, client_rows(answer["consumers"]))
    else:
        output.say(f"nobody consumes for {name} now.")
    if answer["leased_by_others"]:
        output.say(
            f"{answer['leased_by_others']:,} messages are held by clients that are not heard from any more;"
            " they come again when their leases end"
        )


@app.command()
def create(
    name: NameArgument,
    topic: Annotated[
        str,
        typer.Argument(
            help="A topic that the group receives; default: the topics that its consumers request."
        ),
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help=f"Position at which the group begins in the topic; default: earliest. One of: {PLACES}",
        ),
    ] = "",
    attempts: AttemptsOption = None,
    retry_after: RetryAfterOption = "",
    fifo_run: FifoRunOption = None,
    lite_exclusive: LiteExclusiveOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a group with its policy before it is used, and let it receive a topic from a position on.

    Repeating the command without a topic changes nothing.

    Example: tidewheel group create shop orders --from latest --attempts 5
    """
    if start and not topic:
        raise ConfigurationError("--from is a place in a topic: give the topic, too.")
    wanted = {"name": name} | policy_fields(attempts, retry_after, fifo_run, lite_exclusive)
    if topic:
        wanted |= {"topic": topic, "start": place(start or "earliest", "--from")}
    tell(broker_at(http).post("groups", body=wanted), as_json)


@app.command("set")
def set_policy(
    name: NameArgument,
    attempts: AttemptsOption = None,
    retry_after: RetryAfterOption = "",
    fifo_run: FifoRunOption = None,
    lite_exclusive: LiteExclusiveOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the delivery policy of a group. Options that are not given are not changed.

    Push consumers receive the policy with their next settings, within minutes.

    Example: tidewheel group set shop --attempts 5 --retry-after 1s,10s,1m
    """
    wanted = policy_fields(attempts, retry_after, fifo_run, lite_exclusive)
    if not wanted:
        raise ConfigurationError("Give --attempts, --retry-after, --fifo-run or --lite-exclusive.")
    group = broker_at(http).put("groups", name, body=wanted)
    if as_json:
        output.print_json(group)
        return
    policy = group["policy"]
    output.show(
        f"{name}: {policy['attempts_max']} attempts, again after {retries(policy['retry_after_ms'])}, "
        f"{policy['fifo_run_max']} of one message group at once"
        + (", lite topics exclusive" if policy["is_lite_exclusive"] else "")
    )


@app.command()
def pause(name: NameArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Stop the delivery of messages to a group. Leased messages may still be acknowledged.

    Example: tidewheel group pause shop
    """
    group = broker_at(http).post("groups", name, "pause", body={})
    output.print_json(group) if as_json else output.show(
        f"{name} is paused, with {group['lag']:,} messages to do"
    )


@app.command()
def resume(name: NameArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Resume the delivery of messages to a paused group.

    Example: tidewheel group resume shop
    """
    group = broker_at(http).post("groups", name, "resume", body={})
    output.print_json(group) if as_json else output.show(
        f"{name} goes on, with {group['lag']:,} messages to do"
    )


@app.command()
def reset(
    name: NameArgument,
    to: Annotated[str, typer.Option(help=f"New position: {PLACES}")],
    topic: TopicOption = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="Make the change; without this option, it is only shown.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the change.")] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the offsets of a group: back to receive messages again, or forward to skip messages.

    Current leases become invalid, and their acknowledgements are refused.

    Example: tidewheel group reset shop --to '30m ago' --topic orders --yes
    """
    is_dry = dry_run or not yes
    wanted: dict[str, Any] = {"to": place(to, "--to"), "dry_run": is_dry}
    wanted |= {"topic": topic} if topic else {}
    answer = broker_at(http).post("groups", name, "reset", body=wanted)
    if as_json:
        output.print_json(answer)
    else:
        output.print_table(MOVES, move_rows(answer["moves"]))
        output.say(f"{'would be ' if is_dry else ''}reset: {reset_line(answer)}")
    if is_dry and not dry_run:
        output.say_undone(len(answer["moves"]))


@app.command()
def delete(
    name: NameArgument,
    topic: TopicOption = "",
    yes: Annotated[bool, typer.Option("--yes", help="Make the change.")] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a group with its offsets, or remove one of its topics. Its dead letters are kept.

    Without --yes, its consumers and its lag are only shown.

    Example: tidewheel group delete shop --yes
    """
    api = broker_at(http)
    group = api.get("groups", name)
    if group["consumers"]:
        output.say(f"{name} has consumers ({group['consumers']:,}): their next receive makes it again, new.")
    if not yes:
        if as_json:
            output.print_json(group)
        else:
            output.show(f"{name} has {counted(group['lag'], 'message')} to do")
        output.say_undone(ending="forget how far it is")
        return
    answer = api.delete("groups", name, **({"topic": topic} if topic else {}))
    if as_json:
        output.print_json(answer)
    else:
        output.show(f"{name} no longer receives {output.some(answer['topics']) or 'anything'}")


def policy_fields(
    attempts: int | None, retry_after: str, fifo_run: int | None, lite_exclusive: bool | None
) -> dict[str, Any]:
    """Return the policy fields that are given, as fields of a request."""
    given = {
        "attempts_max": attempts,
        "retry_after_ms": [parse_ms(one.strip(), "--retry-after") for one in retry_after.split(",") if one],
        "fifo_run_max": fifo_run,
        "is_lite_exclusive": lite_exclusive,
    }
    return {field: value for field, value in given.items() if value not in (None, [])}


def tell(group: dict[str, Any], as_json: bool) -> None:
    """Print a group and its queues."""
    if as_json:
        output.print_json(group)
        return
    output.show(*group_lines(group))
    if group["queues"]:
        output.print_table(QUEUES, queue_rows(group["queues"]))


def place(text: str, flag: str) -> str:
    """Return the start position of a group as a field of a request."""
    said = text.strip()
    if said in ("earliest", "latest") or said.startswith("offset:"):
        return said
    try:
        return str(parse_past_ms(said, flag))
    except ConfigurationError as error:
        if said.isdecimal():
            raise ConfigurationError(f"{error.detail} For an offset, write offset:{said}.") from error
        raise
