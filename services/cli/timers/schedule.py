"""`tidewheel schedule`: recurring messages defined by cron expressions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from commitlog import limits
from services.broker.spine.errors import IllegalSchedule
from services.cli.messages.send import pairs
from services.cli.terminal import bodies, output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.listing import lists
from services.cli.terminal.times import parse_due_ms
from services.http.api import Api
from services.times.zones import in_zone
from tidewheel.errors import ConfigurationError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List, set, pause and end recurring messages.\n\n"
    "Example: tidewheel schedule set report --cron '0 9 * * 1-5' --zone Europe/London --topic t --body go",
)


class MissedRuns(StrEnum):
    """Policy for missed runs."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


NameArgument = Annotated[str, typer.Argument(help="The name of the schedule.")]
ZoneOption = Annotated[str, typer.Option("--zone", help="The name of the time zone, such as Europe/London.")]
MOMENT = "2026-12-01T09:00, 2026-12-01 or 2026-12, in its zone; in 90d, 30m ago, or milliseconds."
StartOption = Annotated[str | None, typer.Option(help=f"Not before this time: {MOMENT}")]
EndOption = Annotated[str | None, typer.Option(help=f"Not after this time: {MOMENT}")]
CountOption = Annotated[int, typer.Option(help="Number of occurrences to show.", min=1, max=100)]


@lists(app)
def list_schedules(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """List the schedules, each with its next occurrence.

    Example: tidewheel schedule ls
    """
    schedules = [*every(broker_at(http))]
    if as_json:
        output.print_json(schedules)
        return
    if not schedules:
        output.say("no schedules; begin with: tidewheel schedule set --help")
        return
    output.print_table(("schedule", "cron", "zone", "topic", "state", "next", "sent"), map(row, schedules))


@app.command()
def show(
    name: NameArgument, count: CountOption = 5, http: HttpOption = None, as_json: JsonOption = False
) -> None:
    """Show a schedule with its state and its next occurrences.

    Example: tidewheel schedule show report --count 10
    """
    schedule = broker_at(http).get("schedules", name, count=count)
    output.print_json(schedule) if as_json else output.show(*lines(schedule))


@app.command("set")
def set_schedule(
    name: Annotated[str, typer.Argument(help="Up to 100 ASCII letters, digits and signs, without /.")],
    cron: Annotated[str, typer.Option(help="5 fields, 6 with seconds first, or @daily: '0 9 * * 1-5'.")],
    topic: Annotated[str, typer.Option(help="The topic of its messages.")],
    body: Annotated[str, typer.Option(help=bodies.HELP)],
    zone: ZoneOption = "UTC",
    key: Annotated[list[str] | None, typer.Option(help="A message key; can be repeated.")] = None,
    tag: Annotated[str, typer.Option(help="The tag that consumers filter by.")] = "",
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="A property NAME=VALUE; can be repeated.")
    ] = None,
    group: Annotated[
        str, typer.Option(help="Message group; messages of a message group are delivered in order.")
    ] = "",
    missed: Annotated[
        MissedRuns, typer.Option(help="Of runs missed while the broker was down, send none, one, or all.")
    ] = MissedRuns.ONCE,
    missed_max: Annotated[
        int, typer.Option(help="With --missed all, the number of newest runs to send.")
    ] = 100,
    start: StartOption = None,
    end: EndOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create or replace a schedule. It is on disk when the command returns.

    Example: tidewheel schedule set report --cron '0 9 * * 1-5' --zone Europe/London --topic reports --body go
    """
    wanted = {
        "cron": cron,
        "time_zone": zone,
        "topic": topic,
        "body": bodies.body_text(body, limits.SCHEDULE_BODY_BYTES_MAX),
        "keys": key or [],
        "tag": tag,
        "properties": pairs(properties or []),
        "message_group": group,
        "missed": missed.value,
        "missed_max": missed_max,
        "start_ms": moment_ms(start, zone, "--start"),
        "end_ms": moment_ms(end, zone, "--end"),
    }
    report(broker_at(http).put("schedules", name, body=wanted), "set", as_json)


@app.command()
def preview(
    cron: Annotated[str, typer.Argument(help="5 fields, 6 with seconds first, or @daily: '0 9 * * 1-5'.")],
    zone: ZoneOption = "UTC",
    count: CountOption = 5,
    start: StartOption = None,
    end: EndOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show when a cron expression occurs, without creating a schedule. --start may be in the past.

    Example: tidewheel schedule preview '30 2 * * *' --zone Europe/Berlin --start 2027-03
    """
    wanted = {
        "cron": cron,
        "time_zone": zone,
        "count": count,
        "start_ms": moment_ms(start, zone, "--start"),
        "end_ms": moment_ms(end, zone, "--end"),
    }
    coming = broker_at(http).post("schedules", "preview", body=wanted)["coming"]
    if as_json:
        output.print_json(coming)
    elif coming:
        output.show(*(one["local"].replace("T", " ") for one in coming))
    if not coming:
        raise IllegalSchedule(f"{cron!r} in {zone} never occurs. Look at its day and month, and at --end.")


@app.command()
def pause(name: NameArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Pause a schedule. Occurrences during the pause are not sent later.

    Example: tidewheel schedule pause report
    """
    report(broker_at(http).post("schedules", name, "pause", body={}), "paused", as_json)


@app.command()
def resume(name: NameArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Resume a schedule.

    Example: tidewheel schedule resume report
    """
    report(broker_at(http).post("schedules", name, "resume", body={}), "goes on", as_json)


@app.command("rm")
def remove(name: NameArgument, http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Delete a schedule.

    Example: tidewheel schedule rm report
    """
    report(broker_at(http).delete("schedules", name), "removed", as_json)


def every(api: Api) -> Iterator[dict[str, Any]]:
    """Yield all schedules, page by page."""
    after: str | None = ""
    while after is not None:
        page = api.get("schedules", after=after)
        yield from page["schedules"]
        after = page["after"]


def report(schedule: dict[str, Any], what: str, as_json: bool) -> None:
    """Print the result of a command for a schedule."""
    if as_json:
        output.print_json(schedule)
        return
    following = f", next {upcoming(schedule)}" if schedule["coming"] else ""
    paused = "; it is paused" if schedule["state"] == "PAUSED" and what == "set" else ""
    output.show(f"{schedule['name']} {what}{following}{paused}")


def row(schedule: dict[str, Any]) -> tuple[str, ...]:
    """Return a schedule as a table row."""
    columns = ("name", "cron", "time_zone", "topic")
    state = schedule["state"].lower() + (" (in trouble)" if schedule["trouble"] else "")
    return (*(schedule[name] for name in columns), state, upcoming(schedule), str(schedule["sent_count"]))


def lines(schedule: dict[str, Any]) -> list[str]:
    """Return the lines that describe a schedule."""
    names = [f"tag {schedule['tag']}"] if schedule["tag"] else []
    names += [f"keys {' '.join(schedule['keys'])}"] if schedule["keys"] else []
    names += [f"group {schedule['message_group']}"] if schedule["message_group"] else []
    names += [f"{name}={value}" for name, value in schedule["properties"].items()]
    bound = f", at most {schedule['missed_max']}" if schedule["missed"] == MissedRuns.ALL else ""
    zone = schedule["time_zone"]
    facts = {
        "cron": f"{schedule['cron']}   {zone}",
        "state": schedule["state"].lower(),
        "topic": schedule["topic"],
        "message": "  ".join(names),
        "body": schedule.get("body", "(binary)"),
        "missed": f"{schedule['missed']}{bound}",
        "start": wall(schedule["start_ms"], zone),
        "end": wall(schedule["end_ms"], zone),
        "sent": str(schedule["sent_count"]),
        "last": wall(schedule["last_ms"], zone),
        "gave up": f"missed runs up to {wall(schedule['passed_ms'], zone)}" if schedule["passed_ms"] else "",
        "trouble": schedule["trouble"],
    }
    coming = [one["local"].replace("T", " ") for one in schedule["coming"]]
    head = [f"{name:8} {value}" for name, value in facts.items() if value]
    return [
        schedule["name"],
        *head,
        *(f"{'next' if not at else '':8} {one}" for at, one in enumerate(coming)),
    ]


def upcoming(schedule: dict[str, Any]) -> str:
    """Return the time of the next occurrence in the time zone of the schedule."""
    coming: list[dict[str, str]] = schedule["coming"]
    return coming[0]["local"].replace("T", " ") if coming else "-"


def wall(at_ms: str | None, zone: str) -> str:
    """Return a time as local time in a time zone, or an empty string for None."""
    if at_ms is None:
        return ""
    try:
        known = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = ZoneInfo("UTC")
    return datetime.fromtimestamp(int(at_ms) // 1000, UTC).astimezone(known).isoformat(" ")


def moment_ms(text: str | None, zone: str, flag: str) -> int | None:
    """Parse a time like all commands, but in a given time zone. Raises `ConfigurationError`."""
    if text is None:
        return None
    try:
        known = ZoneInfo(zone)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise ConfigurationError(f"--zone is {zone!r}: {error}. Write it as Europe/London.") from error
    try:
        return parse_due_ms(in_zone(text.strip(), known), flag)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error.detail} 2026-12-01 and 2026-12 will do, too.") from error
