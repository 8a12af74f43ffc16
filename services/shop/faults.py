"""Fault injection for tests and the demo. No faults are armed in normal operation.

`TIDEWHEEL_SHOP_FAULTS` is a list such as `die-before-commit@30,repeat-same-id/25,poison=O7`. `name@n`
triggers the fault at the n-th pass, `name/n` at every n-th pass, and `name=subject` at every pass for that
order or push. Before a fault is triggered, a JSON line is appended to the file in `TIDEWHEEL_SHOP_FAULT_LOG`,
so that faults can be counted even if the process dies.

Faults that a correct shop tolerates (`tidewheel demo --faults`):

| name | effect |
|---|---|
| die-between-halves | the order service exits in `place`, after the first of two half messages |
| die-after-halves | the same, after both half messages and before the barrier rows |
| die-after-row | the same, after the barrier rows and before the order's rows |
| die-before-commit | the same, after the order's rows and before the database commit |
| die-after-commit | the same, after the database commit and before a half message is ended |
| die-between-ends | the same, after the first of two half messages was ended |
| die-paying-after-half, -after-row, -before-commit, -after-commit | the same for a payment |
| repeat-same-id | a send is repeated with the same message id, as after a lost response |
| repeat-as-new | the `order-created` message of an order is sent again as a new message |
| die-before-ack | the cart service exits after it has changed a cart and before the acknowledgement |

Bugs that the audit must find (`tidewheel demo --bugs`):

| name | incorrect operation of the service |
|---|---|
| row-without-message | writes an order's rows without a transaction |
| message-without-row | sends the messages of an order without its rows |
| pay-without-message | marks an order as paid without a transaction |
| keep-deadline | sends the `order-paid` message without the cancellation of the deadline |
| time-out-paid | times an order out regardless of its status |
| ack-without-clearing | acknowledges an order's message without changing the cart |
| clear-again | removes the lines from the cart again when the message is redelivered |
| poison | fails at every delivery of an order's message |
| push-without-message | marks a push as delivered without sending it |
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.shop.clock import wall_clock_ms
from tidewheel.errors import UnknownChoice

if TYPE_CHECKING:
    from collections.abc import Mapping

FAULTS_VARIABLE = "TIDEWHEEL_SHOP_FAULTS"
FAULT_LOG_VARIABLE = "TIDEWHEEL_SHOP_FAULT_LOG"
EXIT_BY_FAULT = 86
ARMED = re.compile(r"(?P<name>[a-z-]+)(?:(?P<mode>[@/])(?P<count>[1-9][0-9]*)|=(?P<subject>[^,]+))")


class Fault(StrEnum):
    """The faults that can be injected."""

    DIE_BETWEEN_HALVES = "die-between-halves"
    DIE_AFTER_HALVES = "die-after-halves"
    DIE_AFTER_ROW = "die-after-row"
    DIE_BEFORE_COMMIT = "die-before-commit"
    DIE_AFTER_COMMIT = "die-after-commit"
    DIE_BETWEEN_ENDS = "die-between-ends"
    DIE_PAYING_AFTER_HALF = "die-paying-after-half"
    DIE_PAYING_AFTER_ROW = "die-paying-after-row"
    DIE_PAYING_BEFORE_COMMIT = "die-paying-before-commit"
    DIE_PAYING_AFTER_COMMIT = "die-paying-after-commit"
    REPEAT_SAME_ID = "repeat-same-id"
    REPEAT_AS_NEW = "repeat-as-new"
    DIE_BEFORE_ACK = "die-before-ack"
    ROW_WITHOUT_MESSAGE = "row-without-message"
    MESSAGE_WITHOUT_ROW = "message-without-row"
    PAY_WITHOUT_MESSAGE = "pay-without-message"
    KEEP_DEADLINE = "keep-deadline"
    TIME_OUT_PAID = "time-out-paid"
    ACK_WITHOUT_CLEARING = "ack-without-clearing"
    CLEAR_AGAIN = "clear-again"
    POISON = "poison"
    PUSH_WITHOUT_MESSAGE = "push-without-message"


@dataclass(slots=True, frozen=True)
class Trigger:
    """The condition of a fault: the n-th pass only, every n-th pass, or every pass for a subject."""

    count: int = 1
    once: bool = False
    subject: str | None = None

    def strikes(self, reached: int, subject: str) -> bool:
        """Return whether the fault is triggered at this pass for `subject`."""
        if self.subject is not None:
            return subject == self.subject
        return reached == self.count if self.once else reached % self.count == 0


@dataclass(slots=True)
class Faults:
    """The armed faults of a process."""

    triggers: dict[Fault, list[Trigger]] = field(default_factory=dict)
    log_path: Path | None = None
    _reached: Counter[Fault] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Faults:
        """Return the faults that the environment arms.

        Raises:
            UnknownChoice: If the variable cannot be parsed.
        """
        triggers: dict[Fault, list[Trigger]] = {}
        for armed in filter(None, environment.get(FAULTS_VARIABLE, "").split(",")):
            fault, trigger = parse(armed)
            triggers.setdefault(fault, []).append(trigger)
        log_path = environment.get(FAULT_LOG_VARIABLE)
        return cls(triggers, Path(log_path) if log_path else None)

    def strikes(self, fault: Fault, subject: str) -> bool:
        """Count a pass for `subject`. Returns whether the fault is triggered, and logs a triggered fault."""
        if fault not in self.triggers:
            return False
        with self._lock:
            self._reached[fault] += 1
            if not any(one.strikes(self._reached[fault], subject) for one in self.triggers[fault]):
                return False
            if self.log_path is not None:
                write_down(self.log_path, fault, subject)
        return True

    def die_if_struck(self, fault: Fault, subject: str) -> None:
        """Exit the process without cleanup if the fault is triggered."""
        if self.strikes(fault, subject):
            os._exit(EXIT_BY_FAULT)


def parse(armed: str) -> tuple[Fault, Trigger]:
    """Parse an armed fault: `name@n`, `name/n` or `name=subject`."""
    found = ARMED.fullmatch(armed)
    if found is None or found["name"] not in list(Fault):
        raise UnknownChoice(
            f"{FAULTS_VARIABLE} holds {armed!r}; it takes NAME@N, NAME/N or NAME=SUBJECT of "
            f"{', '.join(Fault)}."
        )
    fault, subject = Fault(found["name"]), found["subject"]
    if subject is not None:
        return fault, Trigger(subject=subject)
    return fault, Trigger(int(found["count"]), once=found["mode"] == "@")


def write_down(log_path: Path, what: str, subject: str) -> None:
    """Append a fault and its subject to a fault log."""
    line = {"fault": what, "subject": subject, "at_ms": wall_clock_ms()}
    with log_path.open("a") as log:
        log.write(json.dumps(line) + "\n")


def written_down(log_path: Path) -> list[dict[str, Any]]:
    """Return the entries of a fault log in order, or an empty list if the file does not exist."""
    return [json.loads(line) for line in log_path.read_text().splitlines()] if log_path.exists() else []
