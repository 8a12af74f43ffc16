"""`tidewheel timer`: what waits, when it is due, and verbs that answer with the truth."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from services.cli import output
from services.cli.api import Api, HttpOption, JsonOption
from services.cli.listing import lists
from services.cli.task_views import task_line, watched
from services.cli.timer_views import (
    EMPTY,
    damage_lines,
    histogram_rows,
    lost_row,
    summary_lines,
    task_row,
    timer_lines,
    timer_row,
)
from services.cli.times import parse_due_ms, parse_moment_ms
from services.status.verdicts import ended_line, verdict_line
from tidewheel.errors import AccessRefused, ConfigurationError, NotFound

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at delayed messages, and cancel, move or fire them.\n\n"
    "Example: tidewheel timer cancel --topic orders --key order:7 --reason paid",
)

REFUSED = 4
COUNT_SECONDS = 600
TABLE = ("due", "", "topic", "timer key", "keys", "tag", "id")
LOST_TABLE = ("due", "", "topic", "log offset", "ended")
TASK_TABLE = ("task", "verb", "state", "done", "verdicts", "began", "reason")

MOMENTS = "in 30m (or 30m), 30m ago, 2026-11-22T09:00 (local), with a zone, or milliseconds."
TopicOption = Annotated[str, typer.Option(help="The topic it is for.")]
PrefixOption = Annotated[str, typer.Option("--topic-prefix", help="Topics that begin so.")]
FilterKeyOption = Annotated[str, typer.Option("--key", help="Its timer key, or one of its message keys.")]
TagOption = Annotated[str, typer.Option(help="Its tag.")]
FromOption = Annotated[str, typer.Option("--from", help=f"Due from then on: {MOMENTS}")]
UntilOption = Annotated[str, typer.Option(help="Due before then.")]
KeyOption = Annotated[str, typer.Option(help="Its timer key, as in: send --timer-key.")]
IdOption = Annotated[str, typer.Option("--id", help="Its message id.")]
HandleOption = Annotated[str, typer.Option(help="Its recall handle; says the topic, too.")]
ReasonOption = Annotated[str, typer.Option(help="Why; it is kept with the timer.")]


def many_option(help_text: str, *flags: str) -> Any:
    """Return an option that goes with --all."""
    return typer.Option(*flags, help=help_text, rich_help_panel="Many at once")


AllOption = Annotated[bool, many_option("All that match, not one: a task that can be watched.", "--all")]
ManyPrefixOption = Annotated[str, many_option("Topics that begin so.", "--topic-prefix")]
ManyTagOption = Annotated[str, many_option("Their tag.", "--tag")]
ManyFromOption = Annotated[str, many_option(f"Due from then on: {MOMENTS}", "--from")]
ManyUntilOption = Annotated[str, many_option("Due before then.", "--until")]
YesOption = Annotated[bool, many_option("Do it; without this they are only counted.", "--yes")]
DryRunOption = Annotated[bool, many_option("Only count them.", "--dry-run")]
DetachOption = Annotated[bool, many_option("Do not wait for the end.", "--detach")]


@app.command()
def summary(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show how many wait, what is due when, and how late deliveries were.

    Example: tidewheel timer summary
    """
    answer = Api(http).get("timers", "summary")
    output.print_json(answer) if as_json else output.show(*summary_lines(answer))


@app.command()
def histogram(
    width: Annotated[str, typer.Option(help="How long a window is: 10s, 1m, 1h.")] = "1m",
    limit: Annotated[int, typer.Option(help="Show at most so many windows.", min=1)] = 60,
    topic: TopicOption = "",
    prefix: PrefixOption = "",
    key: FilterKeyOption = "",
    tag: TagOption = "",
    from_: FromOption = "",
    until: UntilOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many are due in each window of time; windows without any are left out.

    Example: tidewheel timer histogram --width 1h --topic pushes
    """
    wanted = filtered(topic, prefix, key, tag, from_, until)
    api = Api(http)
    answer = api.get("timers", "histogram", width=width, **wanted)
    if as_json:
        output.print_json(answer)
        return
    windows = answer["windows"]
    if not windows:
        if is_there(api, topic):
            output.say(EMPTY)
        return
    output.print_table(("from", "", "timers", ""), histogram_rows(windows[:limit]))
    if len(windows) > limit:
        output.say(f"{len(windows) - limit:,} more windows: --limit, or a larger --width")


@lists(app)
def list_timers(
    topic: TopicOption = "",
    prefix: PrefixOption = "",
    key: FilterKeyOption = "",
    tag: TagOption = "",
    from_: FromOption = "",
    until: UntilOption = "",
    limit: Annotated[
        int, typer.Option(help="Show at most so many, the first due first.", min=1, max=1000)
    ] = 20,
    after: Annotated[str, typer.Option(help="Go on behind a page: what that said.")] = "",
    damaged: Annotated[
        bool, typer.Option("--damaged", help="What is damaged, and the timers that nobody has any more.")
    ] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """List timers that wait, the first due first.

    Example: tidewheel timer ls --topic orders --until 'in 1h'
    """
    api, wanted = Api(http), filtered(topic, prefix, key, tag, from_, until)
    if damaged:
        tell_damage(api, wanted, limit, as_json)
        return
    page = api.get("timers", limit=limit, **wanted, **({"after": after} if after else {}))
    if as_json:
        output.print_json(page)
        return
    if not page["timers"]:
        if is_there(api, topic):
            output.say(EMPTY)
        return
    output.print_table(TABLE, map(timer_row, page["timers"]))
    if page["after"]:
        count = api.get("timers", "count", **wanted)["count"]
        output.say(f"there are more, {count:,} in all: --after {page['after']}")


def tell_damage(api: Api, wanted: dict[str, Any], limit: int, as_json: bool) -> None:
    """Print what is damaged, and the timers that were lost to it."""
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
    key: KeyOption = "",
    id_: IdOption = "",
    handle: HandleOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one timer and its message; one that has ended says how and why, with the exit code 4.

    Example: tidewheel timer show --topic orders --key order:7
    """
    name = Named(topic, key, id_, handle)
    api = Api(http)
    answer = api.get("timers", "one", **name.given())
    if "verdict" in answer:
        tell_verdict(api, answer, name, as_json, (), ended_line)
    output.print_json(answer) if as_json else output.show(*timer_lines(answer))


@app.command()
def cancel(
    topic: TopicOption = "",
    key: KeyOption = "",
    id_: IdOption = "",
    handle: HandleOption = "",
    reason: ReasonOption = "",
    everything: AllOption = False,
    prefix: ManyPrefixOption = "",
    tag: ManyTagOption = "",
    from_: ManyFromOption = "",
    until: ManyUntilOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a timer: CANCELLED means that it will not arrive. With --all, every timer of a filter.

    Example: tidewheel timer cancel --all --topic pushes --until 2026-12-01T00:00 --yes
    """
    if everything:
        refuse_names(id_, handle)
        wanted = {
            "verb": "cancel",
            "filter": filtered(topic, prefix, key, tag, from_, until),
            "reason": reason,
        }
        many(Api(http), wanted, yes, dry_run, detach, as_json)
        return
    refuse_filters(
        prefix=prefix, tag=tag, until=until, yes=yes, detach=detach, dry_run=dry_run, **{"from": from_}
    )
    name = Named(topic, key, id_, handle)
    api = Api(http)
    answer = api.post("timers", "cancel", body=name.given() | {"reason": reason})
    tell_verdict(api, answer, name, as_json, ("CANCELLED", "ALREADY"))


@app.command()
def move(
    to: Annotated[str, typer.Option(help=f"The new time: {MOMENTS}")] = "",
    by: Annotated[str, many_option("So much later, or with a minus earlier: 1h, -30m.", "--by")] = "",
    topic: TopicOption = "",
    key: KeyOption = "",
    id_: IdOption = "",
    handle: HandleOption = "",
    reason: ReasonOption = "",
    everything: AllOption = False,
    prefix: ManyPrefixOption = "",
    tag: ManyTagOption = "",
    from_: ManyFromOption = "",
    until: ManyUntilOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a timer to another time. With --all, every timer of a filter.

    Example: tidewheel timer move --topic orders --key order:7 --to 'in 45m'
    """
    if by and not to and not everything:
        raise ConfigurationError("--by is for many timers: add --all; or say when one is due: --to 'in 45m'.")
    if bool(to) == bool(by):
        raise ConfigurationError("Say --to, such as --to 'in 45m'; or with --all how far, such as --by 1h.")
    target = {"to": parse_due_ms(to, "--to")} if to else {"by": by}
    if everything:
        refuse_names(id_, handle)
        wanted = {"verb": "move", "filter": filtered(topic, prefix, key, tag, from_, until), "reason": reason}
        many(Api(http), wanted | target, yes, dry_run, detach, as_json)
        return
    refuse_filters(
        prefix=prefix, tag=tag, until=until, yes=yes, detach=detach, dry_run=dry_run, **{"from": from_}
    )
    name = Named(topic, key, id_, handle)
    api = Api(http)
    answer = api.post("timers", "move", body=name.given() | target | {"reason": reason})
    tell_verdict(api, answer, name, as_json, ("MOVED",))


@app.command()
def fire(
    topic: TopicOption = "",
    key: KeyOption = "",
    id_: IdOption = "",
    handle: HandleOption = "",
    reason: ReasonOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver a timer's message now.

    Example: tidewheel timer fire --topic orders --key order:7
    """
    name = Named(topic, key, id_, handle)
    api = Api(http)
    answer = api.post("timers", "fire", body=name.given() | {"reason": reason})
    tell_verdict(api, answer, name, as_json, ("FIRED",))


@app.command()
def tasks(
    task: Annotated[str, typer.Argument(help="One task; else all.")] = "",
    stop: Annotated[bool, typer.Option("--stop", help="Stop it.")] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the tasks that --all has begun since the broker's start, or one of them, or stop it.

    Example: tidewheel timer tasks 3f2a9c01b7de --stop
    """
    api = Api(http)
    if task:
        answer = api.delete("timers", "tasks", task) if stop else api.get("timers", "tasks", task)
        output.print_json(answer) if as_json else output.show(task_line(answer))
        return
    if stop:
        raise ConfigurationError("--stop needs to know which task: tidewheel timer tasks ID --stop.")
    found = api.get("timers", "tasks")["tasks"]
    if as_json:
        output.print_json(found)
    elif found:
        output.print_table(TASK_TABLE, map(task_row, found), prose=("reason", "verdicts"))
    else:
        output.say(
            "no tasks since the broker's start. One begins with:  tidewheel timer cancel --all ... --yes"
        )


@dataclass(frozen=True, slots=True)
class Named:
    """How a timer is called on the command line."""

    topic: str
    key: str
    id: str
    handle: str

    def given(self) -> dict[str, Any]:
        """Return it as the HTTP interface takes it; raise `ConfigurationError` if that is not one name."""
        names = {"key": self.key, "id": self.id, "handle": self.handle}
        given = {name: value for name, value in names.items() if value}
        if len(given) != 1:
            raise ConfigurationError(
                "Name the timer in one way: --key, --id or --handle; or --all with a filter."
            )
        if not self.topic and not self.handle:
            raise ConfigurationError(
                "--topic is missing: a timer key or an id names a timer within its topic."
            )
        return given | ({"topic": self.topic} if self.topic else {})

    def __str__(self) -> str:
        return self.key or self.id


def tell_verdict(
    api: Api,
    answer: dict[str, Any],
    name: Named,
    as_json: bool,
    good: tuple[str, ...],
    line: Callable[[dict[str, Any], str, str], str] = verdict_line,
) -> None:
    """Print a verdict; ends the command with 4 unless it is good."""
    if as_json:
        output.print_json(answer)
    else:
        output.show(line(answer, str(name), name.topic))
    if answer["verdict"] == "NEVER_SET" and is_there(api, name.topic) and name.key:
        listing = shlex.join(["tidewheel", "timer", "ls", "--topic", name.topic, "--key", name.key])
        output.say(
            f"--key is a timer key (send --timer-key). Those with a message key are listed by:  {listing}"
        )
    if answer["verdict"] not in good:
        raise typer.Exit(REFUSED)


def is_there(api: Api, topic: str) -> bool:
    """Return whether a topic exists, if one was named; say so if it does not."""
    try:
        if topic:
            api.get("topics", topic)
    except NotFound as error:
        output.say(f"{error.code} {error}")
        return False
    except AccessRefused:  # who may use a timer need not be let look at its topic
        return True
    return True


def filtered(topic: str, prefix: str, key: str, tag: str, from_: str, until: str) -> dict[str, Any]:
    """Return a filter as the HTTP interface takes it."""
    texts = {"topic": topic, "topic-prefix": prefix, "key": key, "tag": tag}
    times = {"from": from_, "until": until}
    moments = {name: parse_moment_ms(text, f"--{name}") for name, text in times.items() if text}
    return {name: text for name, text in texts.items() if text} | moments


def refuse_names(id_: str, handle: str) -> None:
    """Refuse what names one timer where many are meant."""
    if id_ or handle:
        raise ConfigurationError(
            "--all goes with a filter (--topic, --key, --tag, --from, --until), not with a name."
        )


def refuse_filters(**given: object) -> None:
    """Refuse what is about many timers where one is meant."""
    for name, value in given.items():
        if value:
            flag = {"prefix": "topic-prefix"}.get(name, name).replace("_", "-")
            raise ConfigurationError(f"--{flag} is for many timers: add --all, or leave it out.")


def many(api: Api, wanted: dict[str, Any], yes: bool, dry_run: bool, detach: bool, as_json: bool) -> None:
    """Count the timers of a filter, or begin a task over them and wait for its end."""
    if not wanted["filter"]:
        wanted["filter"] = {"everything": True}
    if dry_run or not yes:
        answer = api.post("timers", "tasks", body=wanted | {"dry_run": True}, wait_seconds=COUNT_SECONDS)
        tell_count(answer, wanted["verb"], dry_run, as_json)
        return
    task = api.post("timers", "tasks", body=wanted)
    if not detach:
        task = watched(api, task, "timers", "timer")
    output.print_json(task) if as_json else output.show(task_line(task))
    if task["state"] == "stopped":
        raise typer.Exit(REFUSED)


def tell_count(answer: dict[str, Any], verb: str, dry_run: bool, as_json: bool) -> None:
    """Say how many there are, and how to do it where that was not said."""
    output.print_json(answer) if as_json else output.show(f"would {verb} {answer['matched']:,} timers")
    if not dry_run:
        output.say("nothing was done: add --yes to do it")
