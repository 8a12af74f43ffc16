"""Faults that a test or the demo arms from outside; nothing is armed in ordinary use.

`TIDEWHEEL_SHOP_FAULTS` holds a list such as `die-before-commit@30,repeat-same-id/25,poison=O7`: `name@n`
strikes the n-th time its point is reached, `name/n` every n-th time, `name=subject` whenever it is reached
for that order or push. Each strike is first written, as a line of JSON, to the file named by
`TIDEWHEEL_SHOP_FAULT_LOG`, so that what was injected can be counted although the process died.

Mishaps, which a correct shop survives (`tidewheel demo --faults`):

| name | strikes |
|---|---|
| die-between-halves | in the order service, placing: after the first of two half messages |
| die-after-halves | after both, before the barrier rows |
| die-after-row | after the barrier rows, before the order's |
| die-before-commit | after the order's rows, before the database commit |
| die-after-commit | after the database commit, before a half message is ended |
| die-between-ends | after the first of two ends |
| die-paying-after-half, -after-row, -before-commit, -after-commit | the same, paying |
| repeat-same-id | a send is repeated as a client does that did not hear the answer: same message id |
| repeat-as-new | an order is announced a second time, by a new message |
| die-before-ack | in the cart service, after the cart was changed, before the message is acknowledged |

Bugs, which the audit has to find (`tidewheel demo --bugs`):

| name | what the service does instead |
|---|---|
| row-without-message | writes an order's rows without its transaction |
| message-without-row | announces an order, and forgets its rows |
| pay-without-message | marks an order as paid without its transaction |
| keep-deadline | says that an order was paid, and forgets to cancel its deadline |
| time-out-paid | times an order out whatever its status |
| ack-without-clearing | acknowledges an order's message, and leaves the cart as it is |
| clear-again | when the message comes again, takes the lines out of the cart again |
| poison | fails at an order's message every time |
| push-without-message | marks a push as delivered, and never sends it |
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
    """The points at which something can be made to go wrong."""

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
    """When an armed fault strikes: the n-th time only, every n-th time, or whenever a subject comes."""

    count: int = 1
    once: bool = False
    subject: str | None = None

    def strikes(self, reached: int, subject: str) -> bool:
        """Return whether the point that has now been reached that often, this time for `subject`, is
        struck.
        """
        if self.subject is not None:
            return subject == self.subject
        return reached == self.count if self.once else reached % self.count == 0


@dataclass(slots=True)
class Faults:
    """The armed faults of one process."""

    triggers: dict[Fault, list[Trigger]] = field(default_factory=dict)
    log_path: Path | None = None
    _reached: Counter[Fault] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Faults:
        """Return the faults that the environment arms; usually none.

        Raises:
            UnknownChoice: when the variable cannot be read.
        """
        triggers: dict[Fault, list[Trigger]] = {}
        for armed in filter(None, environment.get(FAULTS_VARIABLE, "").split(",")):
            fault, trigger = parse(armed)
            triggers.setdefault(fault, []).append(trigger)
        log_path = environment.get(FAULT_LOG_VARIABLE)
        return cls(triggers, Path(log_path) if log_path else None)

    def strikes(self, fault: Fault, subject: str) -> bool:
        """Count that a point was reached for `subject`; whether it is struck this time, and written down."""
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
        """End the process as a crash does, without any cleaning up, when the point is struck."""
        if self.strikes(fault, subject):
            os._exit(EXIT_BY_FAULT)


def parse(armed: str) -> tuple[Fault, Trigger]:
    """Read one armed fault, `name@n`, `name/n` or `name=subject`."""
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
    """Add a line to a fault log: the fault and its subject."""
    line = {"fault": what, "subject": subject, "at_ms": wall_clock_ms()}
    with log_path.open("a") as log:
        log.write(json.dumps(line) + "\n")


def written_down(log_path: Path) -> list[dict[str, Any]]:
    """Return the lines of a fault log, in order: fault, subject, at_ms; none if there is no such file."""
    return [json.loads(line) for line in log_path.read_text().splitlines()] if log_path.exists() else []
