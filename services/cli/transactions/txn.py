"""`tidewheel txn`: open and expired transactions, check-backs, and manual resolution."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

import typer

from services.cli.messages.send import say_verdict
from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.listing import lists
from services.cli.transactions.txn_views import EMPTY, lines, needing, question_text, row
from services.http.api import Api
from services.times.display import both, now_ms, span, wall
from tidewheel import durations
from tidewheel.errors import ConfigurationError, NotFound

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at transactions; ask their producers, end them by hand.\n\nExample: tidewheel txn ls",
)

TABLE = ("transaction", "topic", "keys", "age", "state", "checks", "next")
UNENDED = ("OPEN", "EXPIRED")
OUTCOMES = {"COMMIT": "COMMITTED", "ROLLBACK": "ROLLED_BACK"}
ID = re.compile(r"[0-9A-Fa-f]{24}")


class StateChoice(StrEnum):
    """The states of transactions to list."""

    OPEN = "open"
    EXPIRED = "expired"
    ALL = "all"


class ResolutionChoice(StrEnum):
    """The outcome of a manual resolution."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


IdArgument = Annotated[str, typer.Argument(help="The transaction id, 24 hex digits; or a key, with --topic.")]
TopicOption = Annotated[str, typer.Option(help="The topic of the messages.")]
LimitOption = Annotated[int, typer.Option(help="Largest number to show.", min=1, max=1000)]


@app.command()
def summary(http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show the number of open and expired transactions, and the outcomes of the others.

    Example: tidewheel txn summary
    """
    answer = broker_at(http).get("transactions", "summary")
    if as_json:
        output.print_json(answer)
        return
    oldest = answer["oldest_open_ms"]
    output.show(f"open {answer['open']:,}" + (f"   the oldest since {both(int(oldest))}" if oldest else ""))
    output.show(
        f"expired {answer['expired']:,}"
        + ("   look: tidewheel txn ls --state expired" if answer["expired"] else "")
    )
    output.show(f"since the start: {answer['committed']:,} committed, {answer['rolled_back']:,} rolled back")
    output.show(f"check-backs asked {answer['checks_asked']:,}   producers connected {answer['producers']:,}")


@lists(app)
def list_transactions(
    state: Annotated[
        StateChoice, typer.Option(help="The state of the transactions.", case_sensitive=False)
    ] = StateChoice.ALL,
    topic: TopicOption = "",
    key: Annotated[str, typer.Option(help="A message key, in any state; requires --topic.")] = "",
    older_than: Annotated[str, typer.Option("--older-than", help="A duration such as 10m.")] = "",
    limit: LimitOption = 20,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """List open and expired transactions, oldest first.

    Example: tidewheel txn ls --older-than 10m
    """
    if key and not topic:
        raise ConfigurationError("--key is looked up in a topic. Give --topic, too.")
    query = {"topic": topic, "key": key, "older-than": older_than, "limit": limit}
    wanted = {name: value for name, value in query.items() if value}
    if state is not StateChoice.ALL:
        wanted["state"] = state.value.upper()
    page = broker_at(http).get("transactions", **wanted)
    if as_json:
        output.print_json(page["transactions"])
        return
    shown = page["transactions"]
    if not shown:
        output.say(EMPTY if not key else f"no transaction of {topic} has the key {key}.")
        return
    output.print_table(TABLE, (row(one, now_ms()) for one in shown))
    if page["after"]:
        output.say("there are more: --limit")
    for one in needing(shown)[:1]:
        need = "one needs you" if len(needing(shown)) == 1 else f"{len(needing(shown))} need you"
        output.say(f"{need}: tidewheel txn show {one['transaction_id']}")


@app.command()
def show(
    transaction_id: IdArgument,
    topic: TopicOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one transaction in any state, with its check-backs.

    Example: tidewheel txn show order-7 --topic order-created
    """
    api = broker_at(http)
    found = [api.get("transactions", one) for one in ids_of(api, topic, transaction_id)]
    if as_json:
        output.print_json(found if topic else found[0])
        return
    output.show(*(line for one in found for line in lines(one)))


@app.command()
def check(
    transaction_id: IdArgument, topic: TopicOption = "", http: HttpOption = None, as_json: JsonOption = False
) -> None:
    """Send a check-back to a producer now, regardless of the schedule.

    Example: tidewheel txn check order-7 --topic order-created
    """
    api = broker_at(http)
    transaction_id = one_id_of(api, topic, transaction_id)
    question = api.post("transactions", transaction_id, "check", body={})
    if as_json:
        output.print_json(question)
    elif question["client_id"]:
        output.show(f"asked {question['client_id']}; its answer: tidewheel txn show {transaction_id}")
    else:
        raise NotFound(
            f"No producer of {question['topic']} is connected. Start one, or: tidewheel txn resolve --help"
        )


@app.command()
def resolve(
    transaction_id: IdArgument,
    resolution: Annotated[ResolutionChoice, typer.Argument(help="The outcome.", case_sensitive=False)],
    reason: Annotated[str, typer.Option(help="Reason, which is stored with the outcome.")],
    topic: TopicOption = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resolve an open or expired transaction manually. Check the database first.

    Example: tidewheel txn resolve 00000000000012AB34CD56EF commit --reason "order 7 is in the database"
    """
    if not reason.strip():
        raise ConfigurationError("--reason is empty. Say why: it is kept with the outcome.")
    body = {"resolution": resolution.name, "reason": reason}
    api = broker_at(http)
    transaction_id = one_id_of(api, topic, transaction_id)
    answer = api.post("transactions", transaction_id, "resolve", body=body)
    if as_json:
        output.print_json(answer)
        return
    before = "   it had ended so before, nothing was changed" if answer["repeated"] else ""
    output.show(f"{answer['transaction_id']} {OUTCOMES[answer['resolution']]}{before}")
    say_verdict(answer)


@app.command("log")
def questions(
    topic: TopicOption = "", limit: LimitOption = 20, http: HttpOption = None, as_json: JsonOption = False
) -> None:
    """Show the check-backs that were sent to producers and their answers, newest first.

    Example: tidewheel txn log --topic order-created
    """
    wanted = {"limit": limit} | ({"topic": topic} if topic else {})
    found = broker_at(http).get("transactions", "log", **wanted)["questions"]
    if as_json:
        output.print_json(found)
        return
    if not found:
        output.say("no producer was asked since the broker's start.")
        return
    table = ((one["transaction_id"], one["topic"], question_text(one)) for one in found)
    output.print_table(("transaction", "topic", "asked"), table, prose=("asked",))


@app.command()
def producers(topic: TopicOption = "", http: HttpOption = None, as_json: JsonOption = False) -> None:
    """Show the producers that can receive check-backs, by topic and in the order in which they are used.

    Example: tidewheel txn producers
    """
    found = broker_at(http).get("transactions", "producers", **({"topic": topic} if topic else {}))[
        "producers"
    ]
    if as_json:
        output.print_json(found)
        return
    if not found:
        output.say("no producer is known now.")
        return
    table = (
        (one["topic"], one["client_id"], "connected" if one["is_connected"] else "gone") for one in found
    )
    output.print_table(("topic", "producer", "state"), table)


@app.command()
def policy(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    immunity: Annotated[str, typer.Option(help="Time before the first check-back: 10s.")] = "",
    interval: Annotated[str, typer.Option(help="Pause after the first check-back; it doubles.")] = "",
    interval_max: Annotated[str, typer.Option("--interval-max", help="The longest pause.")] = "",
    count: Annotated[
        int | None, typer.Option(help="Number of check-backs before a half expires.", min=1)
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Use the settings of the broker again.")] = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the check-back policy of a topic.

    Options that are not given are reset to the settings of the broker.

    Example: tidewheel txn policy order-created --immunity 10s --interval 30s --count 15
    """
    spans = {"immunity_ms": immunity, "interval_ms": interval, "interval_ms_max": interval_max}
    wanted: dict[str, Any] = {name: span_of(name, text) for name, text in spans.items() if text}
    wanted |= {"count_max": count} if count else {}
    if bool(wanted) == default:
        raise ConfigurationError(
            "Give --immunity, --interval, --interval-max or --count; or --default, alone, to undo them."
        )
    answer = broker_at(http).put("topics", topic, "check-back", body=wanted)
    if as_json:
        output.print_json(answer)
    elif answer["count_max"] is None:
        output.show(f"{topic}: check-backs as the broker's settings say")
    else:
        output.show(
            f"{topic}: first after {span(answer['immunity_ms'])}, then {span(answer['interval_ms'])} "
            f"and longer, at most {span(answer['interval_ms_max'])}; "
            f"expired after {answer['count_max']} checks"
        )


def ids_of(api: Api, topic: str, named: str) -> list[str]:
    """Return a transaction id or a key's transaction ids. Raises `ConfigurationError` or `NotFound`."""
    if not topic and not ID.fullmatch(named):
        raise ConfigurationError(
            f"{named!r} is no transaction id (24 hex digits). To look a key up, give --topic, too."
        )
    return [one["transaction_id"] for one in of_key(api, topic, named)] if topic else [named]


def one_id_of(api: Api, topic: str, named: str) -> str:
    """Return the transaction id for an id or a key.

    If several transactions have the key, the unended one is returned.

    Raises `ConfigurationError` with the candidate ids if the key is ambiguous, and `NotFound`.
    """
    if not topic:
        return ids_of(api, topic, named)[0]
    found = of_key(api, topic, named)
    unended = [one for one in found if one["state"] in UNENDED]
    meant = unended or found
    if len(meant) > 1:
        ids = output.some([f"{one['transaction_id']} ({one['state']})" for one in meant])
        raise ConfigurationError(
            f"{len(meant)} transactions of {topic} have the key {named}. Give an id: {ids}."
        )
    return str(meant[0]["transaction_id"])


def of_key(api: Api, topic: str, key: str) -> list[dict[str, Any]]:
    """Return the transactions with a key. Raises `NotFound`."""
    found: list[dict[str, Any]] = api.get("transactions", topic=topic, key=key)["transactions"]
    if not found:
        raise NotFound(f"No transaction of {topic} has the key {key} ({wall(now_ms())}).")
    return found


def span_of(name: str, text: str) -> int:
    """Return a time span in milliseconds. `ConfigurationError` names the option."""
    try:
        return durations.span_ms(text)
    except ValueError as error:
        flag = "--" + name.replace("_ms", "").replace("_", "-")
        raise ConfigurationError(f"{flag} is {text!r}: {error}.") from error
