"""How the commands tell people about tasks over many things, and watch one until it ends."""

from __future__ import annotations

import time
from typing import Any

from services.cli import output
from services.cli.api import Api

Answer = dict[str, Any]

LOOK_AGAIN_SECONDS = 0.2


def watched(api: Api, task: Answer, kind: str, command: str) -> Answer:
    """Wait for the end of a task under `/api/KIND/tasks`, saying how far it is; `command` has `tasks`."""
    last = ""
    try:
        while task["state"] == "running":
            if progress(task) != last:
                last = progress(task)
                output.say(f"{task['verb']}  {last}")
            time.sleep(LOOK_AGAIN_SECONDS)
            task = api.get(kind, "tasks", task["id"])
    except KeyboardInterrupt:
        output.say(f"the task goes on; this stops it:  tidewheel {command} tasks {task['id']} --stop")
        raise
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
