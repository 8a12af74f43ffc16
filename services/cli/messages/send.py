"""`tidewheel send`: send a message from the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from services.broker.spine.errors import IllegalProperty
from services.cli.terminal import bodies, output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.durations import parse_ms
from services.cli.terminal.times import parse_due_ms
from services.http.api import Api
from services.status.created_topics import created_line, created_shape
from services.status.holds import is_held
from services.times.display import both, now_ms
from tidewheel.errors import ConfigurationError

app = typer.Typer(add_completion=False)


@app.command()
def send(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    body: Annotated[str, typer.Argument(help=bodies.HELP)],
    key: Annotated[list[str] | None, typer.Option(help="A message key; can be repeated.")] = None,
    tag: Annotated[str, typer.Option(help="The tag that consumers filter by.")] = "",
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="A property NAME=VALUE; can be repeated.")
    ] = None,
    in_: Annotated[
        str | None, typer.Option("--in", help="Deliver after 500ms, 30s, 1h30m, 2d; default: immediately.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Deliver at 2026-11-22T09:00 (local), at a time with a zone, or in 30m."),
    ] = None,
    timer_key: Annotated[
        str, typer.Option(help="Timer key until delivery; a pending message with the same key is replaced.")
    ] = "",
    unique: Annotated[
        bool, typer.Option("--unique", help="Refuse the message if another with its --timer-key is pending.")
    ] = False,
    group: Annotated[
        str, typer.Option(help="Message group; messages of a message group are delivered in order.")
    ] = "",
    priority: Annotated[
        int | None,
        typer.Option(
            help="For a topic of type priority: higher values are delivered first; 0 is lowest.", min=0
        ),
    ] = None,
    lite_topic: Annotated[
        str, typer.Option(help="For a topic of type lite: the lite topic of the message.")
    ] = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message, now or later. It is on disk when the command returns.

    Example: tidewheel send order-timeouts '{"order_id": 7}' --key order:7 --in 30s
    Example: tidewheel send reports @report.json --at 2026-11-22T09:00
    """
    if in_ is not None and at is not None:
        raise ConfigurationError("--in and --at both say when: give one of them.")
    delay_ms = None if in_ is None else parse_delay_ms(in_)
    at_ms = None if at is None else parse_due_ms(at, "--at")
    wanted = {
        "topic": topic,
        **bodies.body_fields(body),
        "keys": key or [],
        "tag": tag,
        "message_group": group,
        "properties": pairs(properties or []),
        "in_ms": delay_ms,
        "at_ms": at_ms,
        **({"timer_key": timer_key} if timer_key else {}),
        "unique": unique,
        "priority": priority,
        "lite_topic": lite_topic,
    }
    api = broker_at(http)
    receipt = api.post("messages", body=wanted)
    receipt["created_topic"] = created = created_shape(api, receipt.get("created_topic"))
    if as_json:
        output.print_json(receipt)
        return
    output.show(receipt["message_id"])
    if delay_ms:
        due = f", due in {in_}"
    else:
        due = "" if delay_ms is None and at_ms is None else due_text(api, topic, at_ms)
    replaced = receipt.get("replaced_offset")
    instead = f", in place of the timer at log offset {replaced}" if replaced else ""
    output.say(f"stored at log offset {receipt['physical_offset']}{due}{instead}")
    say_verdict(receipt)
    if created is not None:
        output.say(created_line(created))


def parse_delay_ms(text: str) -> int:
    """Parse --in. Raises `ConfigurationError`."""
    try:
        return parse_ms(text, "--in")
    except ConfigurationError as error:
        if not text.startswith("-"):
            raise
        raise ConfigurationError(f"{error.detail} Without --in it is delivered at once.") from error


def due_text(api: Api, topic: str, at_ms: int | None) -> str:
    """Return the due time as text. `at_ms` is None for a delay of 0.

    A time in the past is reported, because the message is then not delayed unless its topic is held.
    """
    if at_ms is not None and at_ms > now_ms():
        return f", due {both(at_ms)}"
    passed = "" if at_ms is None else f"{both(at_ms)} has passed"
    if is_held(api, topic):
        return f", HELD until:  tidewheel topic release {topic}" + (passed and f"  ({passed})")
    return ", delivered at once" + (passed and f": {passed}")


def say_verdict(answer: dict[str, Any]) -> None:
    """Print the result of the timer operation that a message carries, if there is one."""
    if verdict := answer.get("verdict"):
        output.say(f"the timer that it names: {verdict_text(verdict)}")


def verdict_text(verdict: dict[str, Any]) -> str:
    """Return the result of the timer operation that a message carries, with advice if there is no
    such timer.
    """
    said: str = verdict["verdict"]
    if said == "NEVER_SET":
        return f"{said}; without TW_TIMER_TOPIC it is looked for in the message's own topic"
    if verdict["ended_ms"] is None:
        return said
    return f"{said}  ended {both(int(verdict['ended_ms']))}  log@{verdict['ended_offset']}"


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE arguments. Raises `IllegalProperty`, also for a duplicate name."""
    found = dict[str, str]()
    for name, value in map(pair, texts):
        if name in found:
            raise IllegalProperty(f"--property {name} is given twice: a message has one value of a name.")
        found[name] = value
    return found


def pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE. Raises `IllegalProperty`."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise IllegalProperty(f"--property is {text!r}: write it as NAME=VALUE.")
    return name, value
