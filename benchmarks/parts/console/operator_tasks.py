"""Ten tasks of an operator: the steps in the console, the commands, and the effect at the broker.

The steps in the console are those of an engineer who begins at the overview and follows what the pages say.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from parts.console.operating import Click, Fill, Sees, Task, Type, Values
from parts.console.situations import BAD, BURST, RIGHT, Broker


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
    """Return whether the timers of a burst are gone, and no others."""
    query = urlencode({"topic": values["burst"], "limit": 1000})
    left = broker.get(f"/api/timers?{query}")["timers"]
    return len(left) == BURST and not any(one["tag"] for one in left)


def is_deleted(broker: Broker, values: Values) -> bool:
    """Return whether a topic is gone."""
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
            Type("tidewheel txn resolve {transaction} rollback --reason 'no such order'", "ROLLBACK"),
        ),
        is_rolled_back,
    ),
    Task(
        "c redrive after a bad release",
        (
            Click("given up"),
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
            Sees("are held when they are due"),
        ),
        (Type("tidewheel topic hold {campaign} --reason 'wrong price' --yes", "held"),),
        is_held,
    ),
    Task(
        "d release it",
        (
            Click("held"),
            Fill("Reason", "right price", near="Release:"),
            Click("Release"),
            Sees("is released"),
        ),
        (Type("tidewheel topic release {campaign} --reason 'right price'", "released"),),
        is_released,
    ),
    Task(
        "e who lags and why",
        (Click("keeping up"), Sees("no consumer of the protocol port is there")),
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
