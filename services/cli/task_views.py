"""How the commands tell people about tasks over many things, and watch one until it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

from services.cli import output
from services.cli.api import Api
from tidewheel.printable import one_line

Answer = dict[str, Any]

LOOK_AGAIN_SECONDS = 0.2
SAY_SECONDS: Final = 10
"""Between two lines about a task where stderr is no terminal, such as a log or a pipe."""
ERASE: Final = "\r\033[2K"


class Line:
    """How far a task is: one line that is rewritten on a terminal, elsewhere a line each SAY_SECONDS."""

    def __init__(self, stream: TextIO, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock_s = stream, clock_s
        self._is_terminal = stream.isatty()
        self._said, self._said_s = "", -float("inf")

    def say(self, sentence: str) -> None:
        """Say how far it is, unless that was said, or another line was said just now."""
        now_s = self._clock_s()
        if sentence == self._said or (not self._is_terminal and now_s < self._said_s + SAY_SECONDS):
            return
        self._said, self._said_s = sentence, now_s
        text = f"{ERASE}{one_line(sentence)}" if self._is_terminal else f"{sentence}\n"
        print(text, end="", file=self._stream, flush=True)

    def end(self) -> None:
        """Leave no half line behind."""
        if self._is_terminal and self._said:
            print(ERASE, end="", file=self._stream, flush=True)


def watched(api: Api, task: Answer, kind: str, command: str) -> Answer:
    """Wait for the end of a task under `/api/KIND/tasks`, saying how far it is; `command` has `tasks`."""
    line = Line(sys.stderr)
    try:
        while task["state"] == "running":
            line.say(f"{task['verb']}  {progress(task)}")
            time.sleep(LOOK_AGAIN_SECONDS)
            task = api.get(kind, "tasks", task["id"])
    except KeyboardInterrupt:
        line.end()
        output.say(f"the task goes on; this stops it:  tidewheel {command} tasks {task['id']} --stop")
        raise
    line.end()
    return task


def task_line(task: Answer) -> str:
    """Say how far a task is."""
    why = f"  ({task['why']})" if task["why"] else ""
    return f"{task['state']}  {task['verb']}  {progress(task)}  {verdicts_text(task)}  task {task['id']}{why}"


def progress(task: Answer) -> str:
    """Return how far a task is."""
    return "counting" if task["matched"] is None else f"{task['done']:,} of {task['matched']:,}"


def verdicts_text(task: Answer) -> str:
    """Return how many had which verdict."""
    return " ".join(f"{verdict} {count:,}" for verdict, count in sorted(task["by_verdict"].items()))
