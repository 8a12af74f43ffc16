"""Ten tasks of an operator: the steps in the console, the commands, and the effect at the broker.

The steps in the console begin at the overview and follow the links and texts of the pages.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import urlencode

from parts.console.operating import COMMAND, Click, Fill, Operator, Sees, Task, Type, Values, typed
from parts.console.pages import console
from parts.console.situations import BAD, BURST, COMMANDS, CONSOLE, RIGHT, Broker, situations
from parts.serving import ROOT
from tests.console.chromium import Pipe, chromium

EFFECT_SECONDS: Final = 30


def is_rolled_back(broker: Broker, values: Values) -> bool:
    """Return whether the half of an order is rolled back."""
    return bool(broker.get(f"/api/transactions/{values['transaction']}")["state"] == "ROLLED_BACK")


def is_redriven(broker: Broker, values: Values) -> bool:
    """Return whether only the dead letters of the bad release were redriven."""
    left = broker.get(f"/api/dead-letters/groups/{values['dead']}?limit=100")["dead_letters"]
    lag = broker.get(f"/api/groups/{values['dead']}")["lag"]
    return (len(left), lag) == (RIGHT, BAD)


def is_held(broker: Broker, values: Values) -> bool:
    """Return whether the timers of a campaign are held."""
    hold = broker.get(f"/api/topics/{values['campaign']}/use")["hold"]
    return bool(hold) and hold["per_second"] is None


def is_released(broker: Broker, values: Values) -> bool:
    """Return whether no timer of a campaign is held."""
    return broker.get(f"/api/topics/{values['campaign']}/use")["hold"] is None


def is_closed(broker: Broker, values: Values) -> bool:
    """Return whether the tagged timers of a burst are gone, and the others of the topic remain."""
    query = urlencode({"topic": values["burst"], "limit": 1000})
    left = broker.get(f"/api/timers?{query}")["timers"]
    return len(left) == BURST and not any(one["tag"] for one in left)


def is_deleted(broker: Broker, values: Values) -> bool:
    """Return whether the old topic is deleted."""
    return values["old"] not in [one["name"] for one in broker.get("/api/topics")["topics"]]


TASKS: Final = (
    Task(
        "a why is an order late",
        (Fill("Find a message", "{order}", is_sent=True), Sees("closer: it is paused")),
        (Type("tidewheel explain {order}", "paused"),),
    ),
    Task(
        "b free a stuck transaction",
        (
            Click("decided"),
            Click("{transaction}"),
            Fill("Resolution", "ROLLBACK"),
            Fill("Reason", "no such order in the database"),
            Click("Resolve"),
            Sees("ROLLBACK of {transaction}"),
        ),
        (
            Type("tidewheel txn ls", "{transaction}"),
            Type("tidewheel txn resolve {transaction} rollback --reason 'no such order'", "ROLLED_BACK"),
        ),
        is_rolled_back,
    ),
    Task(
        "c redrive after a bad release",
        (
            Click("{dead}", near="given up"),
            Fill("Error has", "KeyError", is_sent=True),
            Fill("Reason", "release 413 is out", near="Redrive all"),
            Click("Preview"),
            Click("Redrive 40"),
            Sees("40 of 40"),
        ),
        (
            Type("tidewheel dlq ls {dead} --died-of KeyError", "KeyError"),
            Type("tidewheel dlq redrive {dead} --died-of KeyError --yes --reason 'release 413'", "40"),
        ),
        is_redriven,
    ),
    Task(
        "d hold a campaign",
        (
            Click("Topics"),
            Click("change, hold or delete", near="{campaign}"),
            Fill("Reason", "wrong price", near="Hold:"),
            Click("Hold"),
            Sees("The timers of {campaign} are held"),
        ),
        (Type("tidewheel topic hold {campaign} --reason 'wrong price' --yes", "held"),),
        is_held,
    ),
    Task(
        "d release it",
        (
            Click("{campaign}", near="held"),
            Fill("Reason", "right price", near="Release:"),
            Click("Release"),
            Sees("{campaign} is released"),
        ),
        (Type("tidewheel topic release {campaign} --reason 'right price'", "released"),),
        is_released,
    ),
    Task(
        "e who lags and why",
        (Click("mailer", near="keeping up"), Sees("no consumer of the protocol port is there")),
        (Type("tidewheel status", "mailer: 900 not done"),),
    ),
    Task(
        "f close a burst",
        (
            Click("Calendar"),
            Fill("Topic", "{burst}"),
            Fill("Tag", "release-412", is_sent=True),
            Fill("Reason", "a faulty release set them", near="All that match"),
            Click("Preview"),
            Fill("Type how many", str(BURST)),
            Click("Cancel them"),
            Sees("500 of 500"),
        ),
        (
            Type("tidewheel timer cancel --all --topic {burst} --tag release-412", str(BURST)),
            Type("tidewheel timer cancel --all --topic {burst} --tag release-412 --yes", str(BURST)),
        ),
        is_closed,
    ),
    Task(
        "g which client is refused",
        (Click("Refused"), Sees("wrong signature"), Sees("shop")),
        (Type("tidewheel refused", "shop"),),
    ),
    Task(
        "h delete a topic safely",
        (
            Click("Topics"),
            Click("change, hold or delete", near="{old}"),
            Sees("0 of them unfinished"),
            Fill("Its name", "{old}", near="Delete:"),
            Fill("Reason", "the sale is over", near="Delete:"),
            Click("Delete", near="Delete:"),
            Sees("{old} is deleted"),
        ),
        (
            Type("tidewheel topic delete {old}", "0"),
            Type("tidewheel topic delete {old} --reason 'the sale is over' --yes", "deleted"),
        ),
        is_deleted,
    ),
    Task("i did the audit balance", (Sees("balanced"),), (Type("tidewheel audit ls", "balance"),)),
    Task(
        "j who cancelled this",
        (Fill("Find a message", "{cancelled}", is_sent=True), Sees("alice")),
        (Type("tidewheel journal --about {cancelled}", "alice"),),
    ),
)

FIRST: Final = Task(
    "find a delayed message and cancel it",
    (
        Fill("Find a message", "order:7", is_sent=True),
        Click("Cancel, move or fire it"),
        Fill("Reason", "paid", near="Cancel: nobody"),
        Click("Cancel", near="Cancel: nobody"),
        Sees("CANCELLED"),
    ),
    (Type("tidewheel timer cancel --topic deadlines --timer-key order:7 --reason paid", "ALREADY"),),
)
"""Follows `tidewheel dev` and a send of a delayed message; the command checks the cancellation."""


def measure(folder: Path, audits: Path | None, pictures: Path | None) -> dict[str, Any]:
    """Execute the first steps with `tidewheel dev`, and all tasks; return the effort of each."""
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    with chromium(folder) as pipe:
        found: dict[str, Any] = {"first": first(pipe, folder, pictures)}
        with (
            situations(folder, audits) as (broker, values),
            patch.dict(os.environ, broker.environment),
            console(broker.http, folder) as link,
        ):
            operator = Operator(pipe, link)
            for task in TASKS:
                in_console = of_way(values, CONSOLE)
                counts = operator.carry_out(task, in_console, pictures)
                await_effect(task, broker, in_console)
                by_command = of_way(values, COMMANDS)
                commands = typed(task, by_command, broker.environment)
                await_effect(task, broker, by_command)
                found[task.name] = {"console": counts.as_json(), "command_line": commands}
    return found


def of_way(values: Values, way: Values) -> dict[str, str]:
    """Return the values of a task for the console or for the command line."""
    return {**values, **way, "transaction": values[way["half"]]}


def await_effect(task: Task, broker: Broker, values: Values) -> None:
    """Wait until the effect of a task is at the broker; raise AssertionError after `EFFECT_SECONDS`."""
    end_s = time.monotonic() + EFFECT_SECONDS
    while not task.holds(broker, values):
        assert time.monotonic() < end_s, f"{task.name}: the broker does not show the effect"
        time.sleep(0.1)


def first(pipe: Pipe, folder: Path, pictures: Path | None) -> dict[str, Any]:
    """Run `tidewheel dev`, send a delayed message, and cancel it in the console."""
    began = time.monotonic()
    with developing(folder) as http:
        ready_s = time.monotonic() - began
        environment, values = {"TIDEWHEEL_HTTP": http}, {"folder": str(folder)}
        line = "tidewheel send deadlines 'order 7 was not paid' --in 30m --timer-key order:7"
        sent = typed(Task("send", (), (Type(line),)), values, environment)
        began = time.monotonic()
        operator = Operator(pipe, f"http://{http}/")
        open_s = time.monotonic() - began
        counts = operator.carry_out(FIRST, values, pictures)
        typed(FIRST, values, environment)
    return {
        "dev_seconds": round(ready_s, 2),
        "send_seconds": sent["seconds"],
        "open_seconds": round(open_s, 2),
        "console": counts.as_json(),
    }


@contextmanager
def developing(folder: Path) -> Iterator[str]:
    """Run `tidewheel dev`; yield its HTTP address after it has printed its banner."""
    free = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", str(folder / "dev"))
    environment = {name: text for name, text in os.environ.items() if not name.startswith("TIDEWHEEL_")}
    process = subprocess.Popen(
        [*COMMAND, "dev", *free],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        http = ""
        for line in process.stdout:
            if line.lstrip().startswith("HTTP"):
                http = line.split()[1].removeprefix("http://")
            if "/receive" in line:
                break
        assert http, "tidewheel dev does not start"
        yield http
    finally:
        process.terminate()
        process.wait()
