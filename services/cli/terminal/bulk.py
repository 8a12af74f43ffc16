"""Bulk commands, which apply an operation to all items that match a filter, as a task of the broker.

Without --yes, or with --dry-run, the items are only counted. The command waits for the end of the task,
unless --detach is given. `Bulk` is used for every kind of item and is configured with its names and table
cells.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TextIO, TypeVar

import typer

from services.cli.terminal import output
from services.cli.usage import TASK_VERBS
from services.http.api import Api
from services.status.judgement import counted
from services.times import rates
from services.times.display import both, exactly, wall
from tidewheel.errors import ConfigurationError, NotFound
from tidewheel.printable import one_line

Answer = dict[str, Any]
Number = TypeVar("Number", int, float)

RATE_HELP: Final = f"Highest rate: {rates.SAMPLES}; default: no limit."
"""The help of every option for a rate."""
WHOLE_RATE_HELP: Final = f"Highest rate: {rates.WHOLE_SAMPLES}; default: no limit."
"""The help of an option for a rate in whole items per second."""
REFUSED: Final = 4
COUNT_SECONDS: Final = 600
ITEMS_PAGE: Final = 1_000
ITEMS_SHOWN: Final = 100
LOOK_AGAIN_SECONDS = 0.2
SAY_SECONDS: Final = 10
"""Between two lines about a task where stderr is no terminal, such as a log or a pipe."""
ERASE: Final = "\r\033[2K"


class Line:
    """Progress of a task: a line that is overwritten on a terminal, or a new line every `SAY_SECONDS`
    elsewhere.
    """

    def __init__(self, stream: TextIO, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock_s = stream, clock_s
        self._is_terminal = stream.isatty()
        self._said, self._said_s = "", -float("inf")

    def say(self, sentence: str) -> None:
        """Print the progress, unless it is unchanged or the previous line was printed too recently."""
        now_s = self._clock_s()
        if sentence == self._said or (not self._is_terminal and now_s < self._said_s + SAY_SECONDS):
            return
        self._said, self._said_s = sentence, now_s
        text = f"{ERASE}{one_line(sentence)}" if self._is_terminal else f"{sentence}\n"
        print(text, end="", file=self._stream, flush=True)

    def end(self) -> None:
        """Erase the current line on a terminal."""
        if self._is_terminal and self._said:
            print(ERASE, end="", file=self._stream, flush=True)


def many_option(help_text: str, *flags: str, **settings: Any) -> Any:
    """Return an option for bulk operations, with further settings of `typer.Option`."""
    return typer.Option(*flags, help=help_text, rich_help_panel="Bulk changes", **settings)


def filter_option(help_text: str, *flags: str) -> Any:
    """Return an option that selects the items of a bulk operation."""
    return typer.Option(*flags, help=help_text, rich_help_panel="Filters")


YesOption = Annotated[
    bool, many_option("Make the change; without this option, matches are only counted.", "--yes")
]
DryRunOption = Annotated[bool, many_option("Only count the matches.", "--dry-run")]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", help="Change at most this many.", min=1, rich_help_panel="Bulk changes"),
]
RateOption = Annotated[str, many_option(RATE_HELP, "--rate")]
DetachOption = Annotated[bool, many_option("Do not wait for the end of the task.", "--detach")]
TaskArgument = Annotated[str, typer.Argument(help="The id of a task; default: all tasks.")]
ItemsOption = Annotated[
    bool, typer.Option("--items", help="List the items that the task has handled, each with its verdict.")
]
ItemsLimitOption = Annotated[int, typer.Option("--limit", help="Largest number of items to list.", min=1)]
ItemsAfterOption = Annotated[
    str, typer.Option("--after", help="Continue the items after a page, with the value that it printed.")
]
StopOption = Annotated[bool, typer.Option("--stop", help="Stop the task.")]


@dataclass(frozen=True, slots=True)
class Run:
    """The options that control a bulk operation."""

    yes: bool
    dry_run: bool
    detach: bool
    as_json: bool
    limit: int | None = None

    def given(self) -> dict[str, bool]:
        """Return the options that apply only to bulk operations, by name."""
        has_limit = self.limit is not None
        return {"yes": self.yes, "dry-run": self.dry_run, "detach": self.detach, "limit": has_limit}

    def extent(self, preview: Answer, noun: str) -> str:
        """Return the number of items that the operation would change, such as "5 of 1,200 timers".

        If it has a limit, and some of the items would stay unchanged, these may be among the first ones.
        """
        matched, changed = preview["matched"], changed_by(preview)
        if is_cut_off(preview):
            return self._extent_at_least(matched, changed, noun)
        items = counted(matched, noun)
        if self.limit is None:
            return items if changed == matched else f"{changed:,} of {items}"
        at_most = "" if changed in (0, matched) else "at most "
        return f"{at_most}{min(self.limit, changed):,} of {items}"

    def _extent_at_least(self, matched: int, changed: int, noun: str) -> str:
        """Return the number of items if more may match than were counted."""
        if not matched:
            return f"no {noun} so far"
        items = f"at least {counted(matched, noun)}"
        if self.limit is None:
            return items if changed == matched else f"at least {changed:,} of {items}"
        at_most = "" if self.limit <= changed == matched else "at most "
        return f"{at_most}{self.limit:,} of {items}"


@dataclass(frozen=True, slots=True)
class Bulk:
    """Bulk tasks for one kind of item.

    `resource` is the path of the tasks under `/api`, `command` is the command group that contains `tasks`,
    and `first` is the command that starts a task. `columns` and `cells` define the additional columns in the
    list of tasks. `name` is the title of the column with the item name. `until` describes the time up to
    which a preview has counted.
    """

    resource: str
    command: str
    first: str
    columns: tuple[str, ...] = ()
    cells: Callable[[Answer], tuple[str, ...]] = lambda _: ()
    name: str = "timer key"
    until: str = ""

    def start(self, api: Api, wanted: dict[str, Any], run: Run, told: Callable[[Answer], str]) -> Answer:
        """Count the items that match a filter, or start a task for them and wait for its end.

        Return the preview or the task, in which `matched` is None if it has not been counted yet. `told`
        returns the message for the answer of a preview. Exit code 4: the task was stopped.
        """
        wanted = wanted | ({} if run.limit is None else {"limit": run.limit})
        if run.dry_run or not run.yes:
            body = wanted | {"dry_run": True}
            answer: Answer = api.post(self.resource, "tasks", body=body, wait_seconds=COUNT_SECONDS)
            lines = (told(answer), *self._cut_off_lines(answer, run), *left_lines(answer))
            output.print_json(answer) if run.as_json else output.show(*lines)
            may_match = answer["matched"] or is_cut_off(answer)
            if not run.dry_run and may_match and not (changed_by(answer) or is_cut_off(answer)):
                output.say("nothing that matches would be changed: nothing to do")
            elif not run.dry_run:
                output.say_undone(may_match)
            return answer
        task: Answer = api.post(self.resource, "tasks", body=wanted)
        if not run.detach:
            task = self.wait_for_end(api, task)
        output.print_json(task) if run.as_json else output.show(task_line(task), *left_lines(task))
        if task["state"] == "stopped":
            raise typer.Exit(REFUSED)
        return task

    def _cut_off_lines(self, preview: Answer, run: Run) -> list[str]:
        """Return up to where a preview has counted, unless it has counted all items."""
        if not is_cut_off(preview):
            return []
        if place := preview.get("counted_until"):
            until = f"queue {place['queue_id']}, offset {place['queue_offset']}"
        else:
            until = f"{self.until}{wall(int(preview['counted_until_ms']))}"
        rest = "and processes all that match"
        if run.limit is not None:
            rest = f"all that match, and processes at most {run.limit:,}"
        return [f"  counted up to {until}, which took 2 s; the task counts {rest}"]

    def show_tasks(
        self, api: Api, task: str, stop: bool, as_json: bool, items: bool, limit: int, after: str
    ) -> None:
        """Show all tasks, newest first, or one task or its items. A task can also be stopped.

        Raises `ConfigurationError` for a verb where the id of a task is meant.
        """
        if task in TASK_VERBS:
            option = TASK_VERBS[task]
            raise ConfigurationError(
                f"{task!r} is no id of a task. Write tidewheel {self.command} tasks ID{option}."
            )
        if items:
            self._show_items(api, task, stop, as_json, limit, after)
            return
        if task:
            call = api.delete if stop else api.get
            answer = call(self.resource, "tasks", task)
            output.print_json(answer) if as_json else output.show(task_line(answer), *left_lines(answer))
            if answer.get("already_ended") and not as_json:
                output.say("the task had already ended: nothing was stopped")
            return
        if stop:
            raise ConfigurationError(
                f"--stop needs to know which task: tidewheel {self.command} tasks ID --stop."
            )
        found = api.get(self.resource, "tasks")["tasks"]
        if as_json:
            output.print_json(found)
        elif found:
            header = ("task", "verb", *self.columns, "state", "done", "verdicts", "began", "reason")
            output.print_table(header, map(self._row, found), prose=("reason", "verdicts"))
        else:
            output.say(
                f"no tasks since the broker's start. One begins with:  tidewheel {self.command} {self.first}"
            )

    def _show_items(self, api: Api, task: str, stop: bool, as_json: bool, limit: int, after: str) -> None:
        """Print the items that a task has changed, in order."""
        if not task or stop:
            raise ConfigurationError(f"--items lists one task: tidewheel {self.command} tasks ID --items.")
        found, place = list[Answer](), after
        while len(found) < limit:
            wanted: dict[str, object] = {"after": place} if place else {}
            count = min(limit - len(found), ITEMS_PAGE)
            page = api.get(self.resource, "tasks", task, "items", limit=count, **wanted)
            found, place = found + page["items"], page["after"]
            if place is None:
                break
        if as_json:
            output.print_json({"items": found, "after": place})
            return
        if found:
            output.print_table(("at", "topic", self.name, "id", "verdict"), map(_item_row, found))
        else:
            output.say("the task has handled no item" + (" after this place" if after else ""))
        if place is not None:
            output.say(f"there are more: --after {place}")
        else:
            self._say_if_unfinished(api, task)

    def _say_if_unfinished(self, api: Api, task_id: str) -> None:
        """Print a notice if the items of a task are not all items of the filter."""
        try:
            task = api.get(self.resource, "tasks", task_id)
        except NotFound:
            output.say(
                "the task ended with an earlier process of the broker; whether it was finished is in the "
                f"journal:  tidewheel journal --about {task_id}"
            )
            return
        if task["state"] != "done":
            output.say(f"these are not all:  {task_line(task)}")

    def _row(self, task: Answer) -> tuple[str, ...]:
        began = both(int(task["started_ms"]))
        progress_cells = (task["state"], progress(task), verdicts_text(task), began, task["reason"])
        return task["id"], task["verb"], *self.cells(task), *progress_cells

    def wait_for_end(self, api: Api, task: Answer) -> Answer:
        """Wait for the end of a task, and print its progress to stderr."""
        line = Line(sys.stderr)
        try:
            while task["state"] == "running":
                line.say(f"{task['verb']}  {progress(task)}")
                time.sleep(LOOK_AGAIN_SECONDS)
                task = api.get(self.resource, "tasks", task["id"])
        except KeyboardInterrupt:
            line.end()
            stop = f"tidewheel {self.command} tasks {task['id']} --stop"
            output.say(f"the task goes on; this stops it:  {stop}")
            raise
        line.end()
        return task


def _item_row(item: Answer) -> tuple[str, ...]:
    return exactly(int(item["at_ms"])), item["topic"], item["name"], item["message_id"], item["verdict"]


def is_cut_off(preview: Answer) -> bool:
    """Return whether the time of a preview was over before all items were counted."""
    return preview.get("counted_until_ms") is not None or preview.get("counted_until") is not None


def changed_by(preview: Answer) -> int:
    """Return the number of items that a task without a limit would change now, of the items that match."""
    left: int = sum(preview["by_verdict"][verdict] for verdict in preview.get("reasons", ()))
    matched: int = preview["matched"]
    return matched - left


def filter_of(texts: dict[str, str], times: dict[str, str], parse: Callable[[str, str], Any]) -> Answer:
    """Return the filter fields of a request: the texts that are given, and the times in milliseconds."""
    moments = {name: parse(text, f"--{name}") for name, text in times.items() if text}
    return {name: text for name, text in texts.items() if text} | moments


def per_second(rate: str) -> float:
    """Return a rate per second, 0 for no limit. Raise `ConfigurationError`."""
    return _rate(rate, rates.per_second)


def whole_per_second(rate: str) -> int:
    """Return a rate in whole items per second, 0 for no limit. Raise `ConfigurationError`."""
    return _rate(rate, rates.whole_per_second)


def _rate(rate: str, parse: Callable[[str], Number]) -> Number:
    try:
        return parse(rate or "0")
    except ValueError as error:
        raise ConfigurationError(f"--rate is {rate!r}: {error}.") from error


def refuse_given(given: dict[str, Any], items: str, remedy: str) -> None:
    """Raise `ConfigurationError` if a bulk option is given for a single item."""
    for flag, value in given.items():
        if value:
            raise ConfigurationError(f"--{flag} is for many {items}: {remedy}.")


def task_line(task: Answer) -> str:
    """Return the state of a task as one line."""
    why = f"  ({task['why']})" if task["why"] else ""
    return f"{task['state']}  {task['verb']}  {progress(task)}  {verdicts_text(task)}  task {task['id']}{why}"


def left_lines(answer: Answer) -> list[str]:
    """Return a line for each verdict that leaves items unchanged, with the number of items and the reason."""
    return [
        f"  {verdict} {answer['by_verdict'][verdict]:,}: {reason}"
        for verdict, reason in sorted(answer.get("reasons", {}).items())
    ]


def progress(task: Answer) -> str:
    """Return the progress of a task."""
    matched, limit = task["matched"], task.get("limit")
    if matched is None:
        return "counting"
    so_far = " so far" if task["state"] == "running" else ""
    if limit is None:
        return f"{task['done']:,} of {matched:,}{so_far}"
    return f"{task['done']:,} of {min(limit, matched):,}{so_far} ({matched:,} match)"


def verdicts_text(task: Answer) -> str:
    """Return the number of items for each verdict."""
    return " ".join(f"{verdict} {count:,}" for verdict, count in sorted(task["by_verdict"].items()))
