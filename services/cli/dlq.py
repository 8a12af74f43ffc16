"""`tidewheel dlq`: messages that groups gave up: why, and back to work with them, or away."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from services.cli import output
from services.cli.api import Api, HttpOption, JsonOption
from services.cli.dlq_views import (
    DEAD_LETTERS,
    GROUPS,
    NONE_AT_ALL,
    TASKS,
    dead_letter_lines,
    dead_letter_row,
    group_row,
    task_row,
)
from services.cli.listing import lists
from services.cli.task_views import task_line, watched
from services.cli.times import parse_past_ms
from tidewheel.errors import ConfigurationError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at dead letters (messages that a group gave up); send them back, purge them.\n\n"
    "Example: tidewheel dlq redrive shop --rate 50/s",
)

REFUSED = 4
COUNT_SECONDS = 600
RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(/s|/m|/h)?")
SECONDS = {"": 1, "/s": 1, "/m": 60, "/h": 3_600}
MOMENTS = "2h ago, 09:30 (today), 2026-11-22T09:00 (local), with a zone, or milliseconds."

GroupArgument = Annotated[str, typer.Argument(help="The consumer group that gave them up.")]


def filter_option(help_text: str, *flags: str) -> Any:
    """Return an option that says which dead letters."""
    return typer.Option(*flags, help=help_text, rich_help_panel="Which ones")


def many_option(help_text: str, *flags: str) -> Any:
    """Return an option that goes with many dead letters."""
    return typer.Option(*flags, help=help_text, rich_help_panel="Many at once")


TopicOption = Annotated[str, filter_option("The topic they came from.", "--topic")]
KeyOption = Annotated[str, filter_option("A message key or message id.", "--key")]
TagOption = Annotated[str, filter_option("Their tag.", "--tag")]
CauseOption = Annotated[
    str, filter_option("Part of why they were given up, or of the first or last error.", "--died-of")
]
FromOption = Annotated[str, filter_option(f"Given up since: {MOMENTS}", "--from")]
UntilOption = Annotated[str, filter_option("Given up before.", "--until")]
YesOption = Annotated[bool, many_option("Do it; without this they are only counted.", "--yes")]
DryRunOption = Annotated[bool, many_option("Only count them.", "--dry-run")]
DetachOption = Annotated[bool, many_option("Do not wait for the end.", "--detach")]
RateOption = Annotated[str, many_option("At most so many: 50/s, 600/m; else as fast as it goes.", "--rate")]
ReasonOption = Annotated[str, many_option("Why you do it; shown with the task and logged.", "--reason")]


@lists(app)
def list_dead_letters(
    group: Annotated[str, typer.Argument(help="The group; else which groups have dead letters.")] = "",
    topic: TopicOption = "",
    key: KeyOption = "",
    tag: TagOption = "",
    died_of: CauseOption = "",
    from_: FromOption = "",
    until: UntilOption = "",
    limit: Annotated[int, typer.Option(help="Show at most so many.", min=1, max=1000)] = 20,
    after: Annotated[str, typer.Option(help="Go on behind a page: what that said.")] = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the groups that have dead letters, or the dead letters of a group, the oldest first.

    Example: tidewheel dlq ls shop --died-of acknowledged --from '2h ago'
    """
    api, wanted = Api(http), filtered(topic, key, tag, died_of, from_, until)
    if not group:
        list_groups(api, bool(wanted or after), as_json)
        return
    more = {"after": after} if after else {}
    page = api.get("dead-letters", "groups", group, limit=limit, **wanted, **more)
    if as_json:
        output.print_json(page)
    elif page["dead_letters"]:
        output.print_table(DEAD_LETTERS, map(dead_letter_row, page["dead_letters"]), prose=("reason",))
    else:
        output.say(f"no dead letters of {group} match." if wanted else f"{group} has no dead letters.")
    if page["after"] and not as_json:
        output.say(f"there are more: --after {page['after']}")


@app.command()
def show(
    group: GroupArgument,
    offset: Annotated[int, typer.Argument(help="Which one: its offset, as listed.", min=0)],
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: why it was given up, and what it says.

    Example: tidewheel dlq show shop 12
    """
    dead_letter = Api(http).get("dead-letters", "groups", group, str(offset))
    output.print_json(dead_letter) if as_json else output.show(*dead_letter_lines(dead_letter))


@app.command()
def redrive(
    group: GroupArgument,
    offset: Annotated[int | None, typer.Argument(help="One of them; else all that match.", min=0)] = None,
    to: Annotated[str, typer.Option(help="Another topic; else its own, for this group alone.")] = "",
    topic: TopicOption = "",
    key: KeyOption = "",
    tag: TagOption = "",
    died_of: CauseOption = "",
    from_: FromOption = "",
    until: UntilOption = "",
    rate: RateOption = "",
    reason: ReasonOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters back to their topic, for this group alone and with all attempts again.

    Example: tidewheel dlq redrive shop --topic orders --rate 50/s --yes
    """
    api, wanted = Api(http), filtered(topic, key, tag, died_of, from_, until)
    if offset is not None:
        refuse_many(wanted, rate=rate, reason=reason, yes=yes, dry_run=dry_run, detach=detach)
        answer = api.post("dead-letters", "groups", group, str(offset), "redrive", body={"target": to})
        tell_end(answer, f"to {to}" if to else "back to its topic", as_json)
        return
    task = {"target": to, "rate_per_second": per_second(rate), "reason": reason}
    many(api, {"verb": "redrive", "group": group, "filter": wanted} | task, yes, dry_run, detach, as_json)


@app.command()
def purge(
    group: GroupArgument,
    offset: Annotated[int | None, typer.Argument(help="One of them; else all that match.", min=0)] = None,
    topic: TopicOption = "",
    key: KeyOption = "",
    tag: TagOption = "",
    died_of: CauseOption = "",
    from_: FromOption = "",
    until: UntilOption = "",
    reason: ReasonOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let dead letters go for good.

    Example: tidewheel dlq purge shop --until 2026-11-01T00:00 --yes
    """
    api, wanted = Api(http), filtered(topic, key, tag, died_of, from_, until)
    if offset is not None:
        refuse_many(wanted, reason=reason, yes=yes, dry_run=dry_run, detach=detach)
        tell_end(api.delete("dead-letters", "groups", group, str(offset)), "", as_json)
        return
    task = {"verb": "purge", "group": group, "filter": wanted, "reason": reason}
    many(api, task, yes, dry_run, detach, as_json)


@app.command()
def tasks(
    task: Annotated[str, typer.Argument(help="One task; else all.")] = "",
    stop: Annotated[bool, typer.Option("--stop", help="Stop it.")] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the tasks over dead letters since the broker's start, or one of them, or stop it.

    Example: tidewheel dlq tasks 3f2a9c01b7de --stop
    """
    api = Api(http)
    if task:
        path = ("dead-letters", "tasks", task)
        answer = api.delete(*path) if stop else api.get(*path)
        output.print_json(answer) if as_json else output.show(task_line(answer))
        return
    if stop:
        raise ConfigurationError("--stop needs to know which task: tidewheel dlq tasks ID --stop.")
    found = api.get("dead-letters", "tasks")["tasks"]
    if as_json:
        output.print_json(found)
    elif found:
        output.print_table(TASKS, map(task_row, found), prose=("reason", "verdicts"))
    else:
        output.say("no tasks since the broker's start. One begins with:  tidewheel dlq redrive GROUP --yes")


def list_groups(api: Api, is_filtered: bool, as_json: bool) -> None:
    """List the groups that have dead letters."""
    if is_filtered:
        raise ConfigurationError(
            "Say of which group: tidewheel dlq ls GROUP. Without options all are listed."
        )
    groups = api.get("dead-letters")["groups"]
    if as_json:
        output.print_json(groups)
    elif groups:
        output.print_table(GROUPS, map(group_row, groups))
    else:
        output.say(NONE_AT_ALL)


def filtered(topic: str, key: str, tag: str, died_of: str, from_: str, until: str) -> dict[str, Any]:
    """Return a filter as the HTTP interface takes it."""
    texts = {"topic": topic, "key": key, "tag": tag, "reason": died_of}
    times = {"from": from_, "until": until}
    moments = {name: parse_past_ms(text, f"--{name}") for name, text in times.items() if text}
    return {name: text for name, text in texts.items() if text} | moments


def refuse_many(wanted: dict[str, Any], **given: object) -> None:
    """Refuse what is about many dead letters where one is named."""
    filters = {"died-of" if name == "reason" else name: value for name, value in wanted.items()}
    for name, value in (filters | given).items():
        if value:
            flag = name.replace("_", "-")
            raise ConfigurationError(f"--{flag} is for many dead letters: leave it out, or the offset.")


def per_second(rate: str) -> float:
    """Return a rate per second, 0 for none; raise `ConfigurationError`."""
    if not rate:
        return 0
    found = RATE.fullmatch(rate)
    count = float(found[1]) / SECONDS[found[2] or ""] if found else 0
    if not count:
        raise ConfigurationError(f"--rate is {rate!r}: write it as 50/s, 600/m or 100/h.")
    return count


def tell_end(answer: dict[str, Any], where: str, as_json: bool) -> None:
    """Say what became of one dead letter."""
    if as_json:
        output.print_json(answer)
    else:
        output.show(f"{answer['group']} {answer['offset']}  {answer['verdict']}  {where}".rstrip())


def many(api: Api, wanted: dict[str, Any], yes: bool, dry_run: bool, detach: bool, as_json: bool) -> None:
    """Count the dead letters of a filter, or begin a task over them and wait for its end."""
    if dry_run or not yes:
        body = wanted | {"dry_run": True}
        answer = api.post("dead-letters", "tasks", body=body, wait_seconds=COUNT_SECONDS)
        tell_count(answer, wanted, dry_run, as_json)
        return
    task = api.post("dead-letters", "tasks", body=wanted)
    if not detach:
        task = watched(api, task, "dead-letters", "dlq")
    output.print_json(task) if as_json else output.show(task_line(task))
    if task["state"] == "stopped":
        raise typer.Exit(REFUSED)


def tell_count(answer: dict[str, Any], wanted: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Say how many there are, and how to do it where that was not said."""
    where = f" to {wanted['target']}" if wanted.get("target") else ""
    many = "1 dead letter" if answer["matched"] == 1 else f"{answer['matched']:,} dead letters"
    told = f"would {wanted['verb']} {many} of {wanted['group']}{where}"
    output.print_json(answer) if as_json else output.show(told)
    if not dry_run:
        output.say("nothing was done: add --yes to do it")
