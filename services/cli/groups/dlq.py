"""`tidewheel dlq`: dead letters of consumer groups. They can be listed, redriven, and purged."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.groups.dlq_views import (
    DEAD_LETTERS,
    GROUPS,
    NONE_AT_ALL,
    dead_letter_lines,
    dead_letter_row,
    group_row,
    task_cells,
)
from services.cli.terminal import bulk, output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.cli.terminal.bulk import Bulk, Run, filter_option, many_option, per_second
from services.cli.terminal.listing import lists
from services.cli.terminal.times import parse_past_ms
from services.http.api import Api
from tidewheel.errors import ConfigurationError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Look at dead letters (messages that a group gave up); send them back, purge them.\n\n"
    "Example: tidewheel dlq redrive shop --rate 50/s",
)

TASKS = Bulk(
    "dead-letters", "dlq", "redrive GROUP --yes", ("group", "to"), task_cells, "offset", "those given up at "
)
MOMENTS = "2h ago, 09:30 (today), 2026-11-22T09:00 (local), with a zone, or milliseconds."

GroupArgument = Annotated[str, typer.Argument(help="The consumer group of the dead letters.")]

TopicOption = Annotated[str, filter_option("The original topic.", "--topic")]
KeyOption = Annotated[str, filter_option("A message key or message id.", "--key")]
TagOption = Annotated[str, filter_option("The tag of the messages.", "--tag")]
CauseOption = Annotated[str, filter_option("Part of the cause, or of the first or last error.", "--died-of")]
FromOption = Annotated[str, filter_option(f"Dead letters since: {MOMENTS}", "--from")]
UntilOption = Annotated[str, filter_option("Dead letters before this time.", "--until")]
ReasonOption = Annotated[str, many_option("Reason, which is shown with the task and logged.", "--reason")]


@lists(app)
def list_dead_letters(
    group: Annotated[str, typer.Argument(help="The group; default: list the groups with dead letters.")] = "",
    topic: TopicOption = "",
    key: KeyOption = "",
    tag: TagOption = "",
    died_of: CauseOption = "",
    from_: FromOption = "",
    until: UntilOption = "",
    limit: Annotated[int, typer.Option(help="Largest number to show.", min=1, max=1000)] = 20,
    after: Annotated[str, typer.Option(help="Continue after a page, with the value that it printed.")] = "",
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the groups that have dead letters, or the dead letters of a group, oldest first.

    Example: tidewheel dlq ls shop --died-of acknowledged --from '2h ago'
    """
    api, wanted = broker_at(http), filtered(topic, key, tag, died_of, from_, until)
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
    offset: Annotated[int, typer.Argument(help="The offset of the dead letter, as listed.", min=0)],
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter with its reason and its content.

    Example: tidewheel dlq show shop 12
    """
    dead_letter = broker_at(http).get("dead-letters", "groups", group, str(offset))
    output.print_json(dead_letter) if as_json else output.show(*dead_letter_lines(dead_letter))


@app.command()
def redrive(
    group: GroupArgument,
    offset: Annotated[
        int | None, typer.Argument(help="The offset of one dead letter; default: all that match.", min=0)
    ] = None,
    to: Annotated[
        str, typer.Option(help="Another topic; default: the original topic, for this group only.")
    ] = "",
    topic: TopicOption = "",
    key: KeyOption = "",
    tag: TagOption = "",
    died_of: CauseOption = "",
    from_: FromOption = "",
    until: UntilOption = "",
    rate: bulk.RateOption = "",
    reason: ReasonOption = "",
    yes: bulk.YesOption = False,
    limit: bulk.LimitOption = None,
    dry_run: bulk.DryRunOption = False,
    detach: bulk.DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters back to their topic, for this group only and with all attempts.

    Example: tidewheel dlq redrive shop --topic orders --rate 50/s --yes
    """
    api, wanted = broker_at(http), filtered(topic, key, tag, died_of, from_, until)
    run = Run(yes, dry_run, detach, as_json, limit)
    if offset is not None:
        refuse_many(wanted, run, rate=rate, reason=reason)
        answer = api.post("dead-letters", "groups", group, str(offset), "redrive", body={"target": to})
        tell_end(answer, f"to {to}" if to else "back to its topic", as_json)
        return
    task = {"target": to, "rate_per_second": per_second(rate), "reason": reason}
    start_task(api, {"verb": "redrive", "group": group, "filter": wanted} | task, run)


@app.command()
def purge(
    group: GroupArgument,
    offset: Annotated[
        int | None, typer.Argument(help="The offset of one dead letter; default: all that match.", min=0)
    ] = None,
    topic: TopicOption = "",
    key: KeyOption = "",
    tag: TagOption = "",
    died_of: CauseOption = "",
    from_: FromOption = "",
    until: UntilOption = "",
    reason: ReasonOption = "",
    yes: bulk.YesOption = False,
    limit: bulk.LimitOption = None,
    dry_run: bulk.DryRunOption = False,
    detach: bulk.DetachOption = False,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters permanently.

    Example: tidewheel dlq purge shop --until 2026-11-01T00:00 --yes
    """
    api, wanted = broker_at(http), filtered(topic, key, tag, died_of, from_, until)
    run = Run(yes, dry_run, detach, as_json, limit)
    if offset is not None:
        refuse_many(wanted, run, reason=reason)
        tell_end(api.delete("dead-letters", "groups", group, str(offset)), "", as_json)
        return
    task = {"verb": "purge", "group": group, "filter": wanted, "reason": reason}
    start_task(api, task, run)


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
    """Show the tasks for dead letters since the broker's start, show one task, or stop a task.

    With --items, list the changes of a task. This also works after a restart.

    Example: tidewheel dlq tasks 3f2a9c01b7de --stop
    """
    TASKS.show_tasks(broker_at(http), task, stop, as_json, items, limit, after)


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
    """Return the filter fields of a request."""
    texts = {"topic": topic, "key": key, "tag": tag, "reason": died_of}
    return bulk.filter_of(texts, {"from": from_, "until": until}, parse_past_ms)


def refuse_many(wanted: dict[str, Any], run: Run, **given: str) -> None:
    """Refuse options for many dead letters if a single dead letter is given."""
    filters = {"died-of" if name == "reason" else name: value for name, value in wanted.items()}
    bulk.refuse_given(filters | given | run.given(), "dead letters", "leave it out, or the offset")


def tell_end(answer: dict[str, Any], where: str, as_json: bool) -> None:
    """Print the result for one dead letter."""
    if as_json:
        output.print_json(answer)
    else:
        output.show(f"{answer['group']} {answer['offset']}  {answer['verdict']}  {where}".rstrip())


def start_task(api: Api, wanted: dict[str, Any], run: Run) -> None:
    """Count the dead letters that match a filter, or start a task for them."""
    where = f" to {wanted['target']}" if wanted.get("target") else ""

    def told(preview: dict[str, Any]) -> str:
        return f"would {wanted['verb']} {run.extent(preview, 'dead letter')} of {wanted['group']}{where}"

    TASKS.start(api, wanted, run, told)
