"""Ends of transactions in every order, and what each must be told: the same for every official client.

commit, rollback      by the producer, one to three times in any order
expired, then those   nobody answered the checks; late ends are refused, an operator's word stands
checked, then those   a check was answered with a commit or a rollback; the producer's own end comes late
the other way round   a check is answered late, when the producer or an operator has ended it
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any, Final, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

Order = tuple[str, ...]
ENDS: Final = ("commit", "rollback")
OPERATOR: Final = tuple(f"resolve {how}" for how in ENDS)
OWN: Final[list[Order]] = [
    *product(ENDS),
    *product(ENDS, ENDS),
    *product(ENDS, ENDS, ENDS),
    *product(OPERATOR, ENDS),
    *product(ENDS, OPERATOR),
]
EXPIRED: Final[list[Order]] = [
    *product(["expire"], ENDS),
    *product(["expire"], ENDS, ENDS),
    *product(["expire"], ENDS, OPERATOR, ENDS),
    *product(["expire"], OPERATOR, OPERATOR),
]
CHECKED: Final[list[Order]] = [*product([f"answer {how}" for how in ENDS], ENDS, ENDS)]
ANSWERED_LATE: Final[list[Order]] = [
    *product(["hold"], [*ENDS, *OPERATOR], [f"answer late {how}" for how in ENDS]),
]
KINDS: Final = {"own": OWN, "expired": EXPIRED, "checked": CHECKED, "late": ANSWERED_LATE}
POLICIES: Final = {
    "own": {"immunity_ms": 600_000},
    "expired": {"immunity_ms": 200, "interval_ms": 200, "count_max": 1},
    "checked": {"immunity_ms": 200, "interval_ms": 1_000},
    "late": {"immunity_ms": 200, "interval_ms": 600_000, "interval_ms_max": 600_000},
}


class TransactionalProducer(Protocol):
    """An official client, whichever it is."""

    def send(self, topic: str, name: str) -> None:
        """Sends a half whose body and key are `name`."""

    def end(self, name: str, how: str) -> str:
        """Ends it; returns OK, or what the client says."""

    def answer(self, name: str, how: str) -> None:
        """Says what checks about it are told from now on: commit, rollback, unknown; or hold them."""


def promised(order: Order) -> tuple[list[str], bool]:
    """What each step is told, and whether there is a message in the end: the first end wins."""
    state, told = "OPEN", []
    for step in order:
        who, _, how = step.rpartition(" ")
        wanted = {"commit": "COMMITTED", "rollback": "ROLLED_BACK"}.get(how, "")
        if step == "expire":
            state = "EXPIRED"
        elif step != "hold" and (state == "OPEN" or (state == "EXPIRED" and who == "resolve")):
            state = wanted
        is_told = who in ("", "resolve") and bool(wanted)
        told.append("" if not is_told else "OK" if wanted == state else state)
    return told, state == "COMMITTED"


class Stage:
    """A broker, an official client and a topic: plays all orders of a kind side by side."""

    def __init__(
        self, broker: Any, producer: TransactionalProducer, kind: str, topic: str, wait_until: Any
    ) -> None:
        self._broker, self._producer, self._topic = broker, producer, topic
        self._wait_until: Callable[[Callable[[], bool], float], None] = wait_until
        self._orders = {f"{kind}-{number}": order for number, order in enumerate(KINDS[kind])}
        broker.create_topic(topic, "TRANSACTION")
        self._ask("PUT", f"topics/{topic}/check-back", POLICIES[kind])

    def play(self) -> None:
        """Plays the orders, and holds every answer and every message against what was promised."""
        for name, order in self._orders.items():
            self._producer.answer(name, order[0].removeprefix("answer ") if " " in order[0] else order[0])
            self._producer.send(self._topic, name)
        told = {name: [] for name in self._orders}  # type: dict[str, list[str]]
        for number in range(max(map(len, self._orders.values()))):
            for name, order in self._orders.items():
                if number < len(order):
                    told[name].append(self._step(name, order[number]))
        for name, order in self._orders.items():
            expected, _ = promised(order)
            assert told[name] == expected, f"{order}: told {told[name]}, promised {expected}"
        stored = sorted(message["body"] for message in self._broker.stored(self._topic))
        assert stored == sorted(name for name, order in self._orders.items() if promised(order)[1])

    def _step(self, name: str, step: str) -> str:
        who, _, how = step.rpartition(" ")
        if step == "expire":
            self._wait_until(lambda: self._state(name) == "EXPIRED", 30)
        elif step == "hold":
            self._wait_until(lambda: bool(self._questions(name)), 30)
        elif who == "answer":
            self._wait_until(lambda: self._state(name) != "OPEN", 30)
        elif who == "answer late":
            self._producer.answer(name, how)
            self._wait_until(lambda: bool(self._questions(name)[0]["answer"]), 30)
        elif who == "resolve":
            body = {"resolution": how.upper(), "reason": "because"}
            return self._ask("POST", f"transactions/{self._half(name)['transaction_id']}/resolve", body)
        else:
            return outcome(self._producer.end(name, step))
        return ""

    def _state(self, name: str) -> str:
        return str(self._half(name)["state"])

    def _questions(self, name: str) -> list[dict[str, Any]]:
        address = f"http://{self._broker.http}/api/transactions/{self._half(name)['transaction_id']}"
        with urlopen(address) as answer:
            return list(json.load(answer)["questions"])

    def _half(self, name: str) -> dict[str, Any]:
        address = f"http://{self._broker.http}/api/transactions?topic={self._topic}&key={name}"
        with urlopen(address) as answer:
            [half] = json.load(answer)["transactions"]
        return dict(half)

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> str:
        kind = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        request = Request(f"http://{self._broker.http}/api/{path}", data, kind, method=method)
        try:
            urlopen(request).close()
        except HTTPError as refusal:
            return outcome(json.load(refusal)["message"])
        return "OK"


def outcome(told: str) -> str:
    """OK, or the outcome that a refusal names."""
    named = [state for state in ("COMMITTED", "ROLLED_BACK", "EXPIRED") if f"was {state} " in told]
    return named[0] if named else told
