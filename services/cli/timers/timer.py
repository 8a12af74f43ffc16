"""`tidewheel timer`: pending timers, and commands to set, cancel, move and fire them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from services.broker.timers import recall
from services.cli.terminal import bulk, output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.bulk import Bulk, Run, many_option
from services.cli.terminal.durations import parse_ms
from services.cli.terminal.listing import lists
from services.cli.terminal.times import parse_due_ms, parse_moment_ms
from services.cli.timers import timer_set
from services.cli.timers.timer_views import (
    EMPTY,
    damage_lines,
    histogram_rows,
    lost_row,
    summary_lines,
    timer_lines,
    timer_row,
)
from services.http.api import Api
from services.status.holds import is_held
from services.status.judgement import counted
from services.status.verdicts import ended_line, move_line, verdict_line
from services.times.display import both, now_ms, wall
from tidewheel import property_names
from tidewheel.errors import AccessRefused, ConfigurationError, NotFound

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Set many delayed messages; look at them, cancel, move or fire them.\n\n"
    "Example: tidewheel timer cancel --topic orders --timer-key order:7 --reason paid",
)

app.command("set")(timer_set.set_many)

TABLE = ("due", "", "topic", "timer key", "keys", "tag", "id")
LOST_TABLE = ("due", "", "topic", "log offset", "ended")
TASKS = Bulk("timers", "timer", "cancel --all ... --yes")

MOMENTS = "in 30m (or 30m), 30m ago, 2026-11-22T09:00 (local), with a zone, or milliseconds."
TopicOption = Annotated[str, typer.Option(help="The topic of the message.")]
PrefixOption = Annotated[str, typer.Option("--topic-prefix", help="Topics with this prefix.")]
TIMER_KEY = "The timer key, as in send --timer-key."
TimerKeyOption = Annotated[str, typer.Option("--timer-key", help=TIMER_KEY)]
TagOption = Annotated[str, typer.Option(help="The tag of the message.")]
MESSAGE_KEY = "One of the message keys, as in send --key."
PROPERTY = "A property of the message, as NAME=VALUE; may be repeated."
MessageKeyOption = Annotated[str, typer.Option("--key", "--message-key", help=MESSAGE_KEY)]
PropertyOption = Annotated[list[str] | None, typer.Option("--property", help=PROPERTY, metavar="NAME=VALUE")]
FromOption = Annotated[str, typer.Option("--from", help=f"Due at or after this time: {MOMENTS}")]
UntilOption = Annotated[str, typer.Option(help="Due before this time.")]
HELD = "Only timers that are due and wait for the release of their topic."
HeldOption = Annotated[bool, typer.Option("--held", help=HELD)]
IdOption = Annotated[str, typer.Option("--id", help="The message id.")]
HandleOption = Annotated[str, typer.Option(help="The recall handle, which contains the topic.")]
ReasonOption = Annotated[str, typer.Option(help="Reason, which is stored with the timer.")]

AllOption = Annotated[bool, many_option("Change all that match, as a task, instead of one.", "--all")]
ManyPrefixOption = Annotated[str, many_option("Topics with this prefix.", "--topic-prefix")]
ManyTagOption = Annotated[str, many_option("The tag of the messages.", "--tag")]
ManyMessageKeyOption = Annotated[str, many_option(MESSAGE_KEY, "--key", "--message-key")]
ManyPropertyOption = Annotated[
    list[str] | None,
    many_option(PROPERTY, "--property", metavar="NAME=VALUE"),
]
ManyFromOption = Annotated[str, many_option(f"Due at or after this time: {MOMENTS}", "--from")]
ManyUntilOption = Annotated[str, many_option("Due before this time.", "--until")]
ManyHeldOption = Annotated[bool, many_option(HELD, "--held")]


@app.command()
def summary(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show the number of pending timers, their due times, and the lateness of deliveries.

    Example: tidewheel timer summary
    """
    answer = broker_at(http).get("timers", "summary")
    output.print_json(answer) if as_json else output.show(*summary_lines(answer))


@app.command()
def histogram(
    width: Annotated[str, typer.Option(help="Width of a window: 10s, 1m, 1h.")] = "1m",
    limit: Annotated[int, typer.Option(help="Largest number of windows to show.", min=1)] = 60,
    topic: TopicOption = "",
    prefix: PrefixOption = "",
    timer_key: TimerKeyOption = "",
    message_key: MessageKeyOption = "",
    tag: TagOption = "",
    properties: PropertyOption = None,
    from_: FromOption = "",
    until: UntilOption = "",
    held: HeldOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the number of due timers in each time window. Empty windows are omitted.

    Example: tidewheel timer histogram --width 1h --topic pushes
    """
    wanted = Filter(topic, prefix, timer_key, message_key, tag, properties, from_, until, held).fields()
    api = broker_at(http)
    answer = api.get("timers", "histogram", width=width, **wanted)
    windows = answer["windows"]
    if as_json:
        output.print_json(answer)
        return
    if not windows:
        output.say(EMPTY)
        say_key(message_key)
        return
    output.print_table(("from", "", "timers", ""), histogram_rows(windows[:limit]))
    if answer["counted_until_ms"]:
        until = wall(int(answer["counted_until_ms"]))
        output.say(f"counted up to {until}, which took 2 s: shorten --from and --until to see the others")
    if len(windows) > limit:
        output.say(f"{len(windows) - limit:,} more windows: --limit, or a larger --width")


@lists(app)
def list_timers(
    topic: TopicOption = "",
    prefix: PrefixOption = "",
    timer_key: TimerKeyOption = "",
    message_key: MessageKeyOption = "",
    tag: TagOption = "",
    properties: PropertyOption = None,
    from_: FromOption = "",
    until: UntilOption = "",
    limit: Annotated[
        int, typer.Option(help="Largest number to show; the earliest are shown.", min=1, max=1000)
    ] = 20,
    after: Annotated[str, typer.Option(help="Continue after a page, with the value that it printed.")] = "",
    held: HeldOption = False,
    damaged: Annotated[
        bool, typer.Option("--damaged", help="Show damage, and timers that cannot be recovered.")
    ] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """List pending timers in order of due time.

    Example: tidewheel timer ls --topic orders --until 'in 1h'
    """
    wanted = Filter(topic, prefix, timer_key, message_key, tag, properties, from_, until, held).fields()
    api = broker_at(http)
    if damaged:
        tell_damage(api, wanted, limit, as_json)
        return
    page = first_timers(api, wanted, limit, after)
    if as_json:
        output.print_json(page)
        return
    if not page["timers"]:
        output.say(EMPTY)
        say_key(message_key)
        return
    output.print_table(TABLE, map(timer_row, page["timers"]))
    if page["after"]:
        found = api.get("timers", "count", **wanted)
        least = "at least " if found["counted_until_ms"] else ""
        output.say(f"there are more, {least}{found['count']:,} in all: --after {page['after']}")


def first_timers(api: Api, wanted: dict[str, Any], limit: int, after: str) -> dict[str, Any]:
    """Return up to `limit` timers after a position. The broker returns fewer if its search takes long."""
    timers, is_more = list[Any](), True
    while is_more:
        position = {"after": after} if after else {}
        page = api.get("timers", limit=limit - len(timers), **wanted, **position)
        timers, after = timers + page["timers"], page["after"] or ""
        is_more = bool(after) and len(timers) < limit
    return {"timers": timers, "after": after or None}


def tell_damage(api: Api, wanted: dict[str, Any], limit: int, as_json: bool) -> None:
    """Print the damage found in the store, and the timers that were lost."""
    if wanted:
        raise ConfigurationError("--damaged lists everything: leave the filter out.")
    answer = api.get("timers", "damaged", limit=limit)
    if as_json:
        output.print_json(answer)
        return
    for line in damage_lines(answer):
        output.show(line)
    if answer["timers"]:
        output.print_table(LOST_TABLE, map(lost_row, answer["timers"]))


@app.command()
def show(
    topic: TopicOption = "",
    timer_key: TimerKeyOption = "",
    id_: IdOption = "",
    handle: HandleOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a timer and its message. For a timer that has ended, the outcome is shown and the exit code is 4.

    Example: tidewheel timer show --topic orders --timer-key order:7
    """
    name = Named(topic, timer_key, id_, handle)
    api = broker_at(http)
    answer = api.get("timers", "one", **name.given())
    if "verdict" in answer:
        tell_verdict(api, answer, name, as_json, (), ended_line)
    output.print_json(answer) if as_json else output.show(*timer_lines(answer))


@app.command()
def cancel(
    topic: TopicOption = "",
    timer_key: TimerKeyOption = "",
    id_: IdOption = "",
    handle: HandleOption = "",
    reason: ReasonOption = "",
    everything: AllOption = False,
    prefix: ManyPrefixOption = "",
    message_key: ManyMessageKeyOption = "",
    tag: ManyTagOption = "",
    properties: ManyPropertyOption = None,
    from_: ManyFromOption = "",
    until: ManyUntilOption = "",
    held: ManyHeldOption = False,
    yes: bulk.YesOption = False,
    limit: bulk.LimitOption = None,
    dry_run: bulk.DryRunOption = False,
    detach: bulk.DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a timer. CANCELLED means that the message will not be delivered.

    With --all, all timers that match the filter are cancelled.

    Example: tidewheel timer cancel --all --topic pushes --until 2026-12-01T00:00 --yes
    """
    run = Run(yes, dry_run, detach, as_json, limit)
    wanted = Filter(topic, prefix, timer_key, message_key, tag, properties, from_, until, held)
    if everything:
        refuse_names(id_, handle)
        start_task(http, {"verb": "cancel"} | many(wanted, reason), run)
        return
    wanted.refuse_one(run)
    name = Named(topic, timer_key, id_, handle)
    api = broker_at(http)
    answer = api.post("timers", "cancel", body=name.given() | {"reason": reason})
    tell_verdict(api, answer, name, as_json, ("CANCELLED", "ALREADY"))


@app.command()
def move(
    to: Annotated[str, typer.Option(help=f"The new time: {MOMENTS}")] = "",
    by: Annotated[str, many_option("Duration to move by: 1h, or -30m for an earlier time.", "--by")] = "",
    topic: TopicOption = "",
    timer_key: TimerKeyOption = "",
    id_: IdOption = "",
    handle: HandleOption = "",
    reason: ReasonOption = "",
    everything: AllOption = False,
    prefix: ManyPrefixOption = "",
    message_key: ManyMessageKeyOption = "",
    tag: ManyTagOption = "",
    properties: ManyPropertyOption = None,
    from_: ManyFromOption = "",
    until: ManyUntilOption = "",
    held: ManyHeldOption = False,
    yes: bulk.YesOption = False,
    limit: bulk.LimitOption = None,
    dry_run: bulk.DryRunOption = False,
    detach: bulk.DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a timer to another time. With --all, all timers that match the filter are moved.

    Example: tidewheel timer move --topic orders --timer-key order:7 --to 'in 45m'
    """
    if by and not to and not everything:
        raise ConfigurationError("--by is for many timers: add --all; or say when one is due: --to 'in 45m'.")
    if bool(to) == bool(by):
        raise ConfigurationError("Say --to, such as --to 'in 45m'; or with --all how far, such as --by 1h.")
    if by:
        parse_ms(by.removeprefix("-"), "--by")
    target = {"to": parse_due_ms(to, "--to")} if to else {"by": by}
    run = Run(yes, dry_run, detach, as_json, limit)
    wanted = Filter(topic, prefix, timer_key, message_key, tag, properties, from_, until, held)
    if everything:
        refuse_names(id_, handle)
        start_task(http, {"verb": "move"} | many(wanted, reason) | target, run)
        return
    wanted.refuse_one(run)
    name = Named(topic, timer_key, id_, handle)
    api = broker_at(http)
    answer = api.post("timers", "move", body=name.given() | target | {"reason": reason})

    def line(found: dict[str, Any], shown: str, _: str) -> str:
        return move_line(api, found, shown, name.named_topic())

    tell_verdict(api, answer, name, as_json, ("MOVED",), line)


@app.command()
def fire(
    topic: TopicOption = "",
    timer_key: TimerKeyOption = "",
    id_: IdOption = "",
    handle: HandleOption = "",
    reason: ReasonOption = "",
    everything: AllOption = False,
    prefix: ManyPrefixOption = "",
    message_key: ManyMessageKeyOption = "",
    tag: ManyTagOption = "",
    properties: ManyPropertyOption = None,
    from_: ManyFromOption = "",
    until: ManyUntilOption = "",
    held: ManyHeldOption = False,
    yes: bulk.YesOption = False,
    limit: bulk.LimitOption = None,
    dry_run: bulk.DryRunOption = False,
    detach: bulk.DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver the message of a timer immediately. With --all, all timers that match the filter are fired.

    Example: tidewheel timer fire --topic orders --timer-key order:7
    """
    run = Run(yes, dry_run, detach, as_json, limit)
    wanted = Filter(topic, prefix, timer_key, message_key, tag, properties, from_, until, held)
    if everything:
        refuse_names(id_, handle)
        start_task(http, {"verb": "fire"} | many(wanted, reason), run)
        return
    wanted.refuse_one(run)
    name = Named(topic, timer_key, id_, handle)
    api = broker_at(http)
    answer = api.post("timers", "fire", body=name.given() | {"reason": reason})
    tell_verdict(api, answer, name, as_json, ("FIRED",))


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
    """Show the tasks started with --all since the broker's start, show one task, or stop a task.

    With --items, list the timers that a task has changed. This also works after a restart.

    Example: tidewheel timer tasks 3f2a9c01b7de --stop
    """
    TASKS.show_tasks(broker_at(http), task, stop, as_json, items, limit, after)


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter options of a list, a histogram or a bulk verb. A timer matches if it meets all of them."""

    topic: str
    prefix: str
    timer_key: str
    message_key: str
    tag: str
    properties: list[str] | None
    from_: str
    until: str
    held: bool

    def fields(self) -> dict[str, Any]:
        """Return the filter in the form of the HTTP interface.

        The field `key` of HTTP also matches message keys, but is indexed, so a timer key is given as `key`
        and as the property that contains it.
        """
        texts = {
            "topic": self.topic,
            "topic-prefix": self.prefix,
            "key": self.timer_key,
            "message-key": self.message_key,
            "tag": self.tag,
            "held": "true" if self.held else "",
        }
        found = bulk.filter_of(texts, {"from": self.from_, "until": self.until}, parse_moment_ms)
        timer_key = [f"{property_names.TIMER_KEY}={self.timer_key}"] if self.timer_key else []
        properties = [*(self.properties or ()), *timer_key]
        return found | ({"property": properties} if properties else {})

    def refuse_one(self, run: Run) -> None:
        """Refuse the options for many timers where a single timer is meant."""
        if self.message_key:
            raise ConfigurationError(
                "--key is a message key, which selects many timers: add --all. A single timer is named by "
                f"{shlex.join(['--timer-key', self.message_key])}, --id or --handle."
            )
        names: dict[str, Any] = {"topic-prefix": self.prefix}
        names |= {"tag": self.tag, "property": self.properties, "from": self.from_, "until": self.until}
        names["held"] = self.held
        bulk.refuse_given(names | run.given(), "timers", "add --all, or leave it out")


@dataclass(frozen=True, slots=True)
class Named:
    """The options that identify a timer."""

    topic: str
    timer_key: str
    id: str
    handle: str

    def given(self) -> dict[str, Any]:
        """Return the fields of a request. Raises `ConfigurationError` unless exactly one name is given."""
        names = {"key": self.timer_key, "id": self.id, "handle": self.handle}
        given = {name: value for name, value in names.items() if value}
        if len(given) != 1:
            raise ConfigurationError(
                "Name the timer in one way: --timer-key, --id or --handle; or --all with a filter."
            )
        if not self.topic and not self.handle:
            raise ConfigurationError(
                "--topic is missing: a timer key or an id names a timer within its topic."
            )
        return given | ({"topic": self.topic} if self.topic else {})

    def named_topic(self) -> str:
        """Return the topic, which a valid handle contains."""
        return self.topic or recall.decode(self.handle).topic

    def __str__(self) -> str:
        return self.timer_key or self.id


def tell_verdict(
    api: Api,
    answer: dict[str, Any],
    name: Named,
    as_json: bool,
    good: tuple[str, ...],
    line: Callable[[dict[str, Any], str, str], str] = verdict_line,
) -> None:
    """Print a verdict. The exit code is 4 unless the verdict is in `good`."""
    if as_json:
        output.print_json(answer)
    else:
        output.show(line(answer, str(name), name.topic))
    if answer["verdict"] == "NEVER_SET" and is_there(api, name.topic) and name.timer_key:
        listing = shlex.join(["tidewheel", "timer", "ls", "--topic", name.topic, "--key", name.timer_key])
        output.say(f"a message key is no timer key; timers with this message key are listed by:  {listing}")
    if answer["verdict"] not in good:
        raise typer.Exit(bulk.REFUSED)


def is_there(api: Api, topic: str) -> bool:
    """Return whether the given topic exists, and print a message if it does not."""
    try:
        with suppress(AccessRefused):  # permission for a timer does not imply permission to view its topic
            if topic:
                api.get("topics", topic)
    except NotFound as error:
        output.say(f"{error.code} {error}")
        return False
    return True


def many(wanted: Filter, reason: str) -> dict[str, Any]:
    """Return the order for a task over a filter; an empty filter means all timers."""
    return {"filter": wanted.fields() or {"everything": True}, "reason": reason}


def refuse_names(id_: str, handle: str) -> None:
    """Refuse options that identify a single timer in a bulk operation."""
    if id_ or handle:
        raise ConfigurationError(
            "--all goes with a filter (--topic, --key, --timer-key, --tag, --property, --from, --until, "
            "--held), not with a name."
        )


def say_key(message_key: str) -> None:
    """Print the option for a timer key, because no timer has the message key."""
    if message_key:
        option = shlex.join(["--timer-key", message_key])
        output.say(f"--key is a message key; a timer key is given as {option}")


def start_task(http: str | None, wanted: dict[str, Any], run: Run) -> None:
    """Count the timers that match a filter, or start a task for them."""
    api, chosen = broker_at(http), wanted["filter"]
    past = past_text(api, wanted, run.limit)

    def told(preview: dict[str, Any]) -> str:
        where = f" in {counted(topic_count(api), 'topic')}" if "everything" in chosen else ""
        after = f"; {past}" if past and preview["matched"] else ""
        return f"would {wanted['verb']} {run.extent(preview, 'timer')}{where}{after}"

    answer = TASKS.start(api, wanted, run, told)
    if answer["matched"] == 0:
        say_key(chosen.get("message-key", ""))
    elif past and (run.as_json or not answer.get("dry_run")):
        output.say(past)


def past_text(api: Api, wanted: dict[str, Any], limit: int | None) -> str:
    """Return which timers a move moves to a past time, and what follows; an empty string if there are none.

    Timers are moved by a time span to different times, so the broker counts those that are due then.
    """
    if "to" in wanted:
        if wanted["to"] > now_ms():
            return ""
        who = f"{both(wanted['to'])} has passed, so they are"
    elif (by := wanted.get("by", "")).startswith("-"):
        found = due_before(api, wanted, now_ms() + parse_ms(by.removeprefix("-"), "--by"))
        if found["matched"] == 0:
            return ""
        count = found["matched"] if limit is None else min(limit, found["matched"])
        at_least = "at least " if bulk.is_cut_off(found) and count != limit else ""
        they = "it is" if count == 1 else "these are"
        who = f"the new time of {at_least}{count:,} of them has passed, so {they}"
    else:
        return ""
    topic = wanted["filter"].get("topic")
    if topic and is_held(api, topic):
        return f"{who} held until the release of {topic}"
    return f"{who} delivered at once{'' if topic else ', or held if the timers of their topic are held'}"


def due_before(api: Api, wanted: dict[str, Any], until_ms: int) -> dict[str, Any]:
    """Count the timers of a task that are due before a time, as the preview of the task does."""
    chosen = wanted["filter"]
    until_ms = min(until_ms, chosen.get("until", until_ms))
    if chosen.get("from", 0) >= until_ms:
        return {"matched": 0}
    body = wanted | {"filter": chosen | {"until": until_ms}, "dry_run": True}
    found: dict[str, Any] = api.post("timers", "tasks", body=body, wait_seconds=bulk.COUNT_SECONDS)
    return found


def topic_count(api: Api) -> int:
    """Return the number of topics with pending timers."""
    return len(api.get("timers", "summary")["pending_by_topic"])
