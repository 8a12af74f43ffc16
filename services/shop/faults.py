"""Faults that a test or `tidewheel demo --faults` arms from outside; nothing is armed in ordinary use.

`TIDEWHEEL_SHOP_FAULTS` holds a list such as `die-before-commit@30,repeat-same-id/25`: `name@n` strikes the
n-th time its point is reached, `name/n` every n-th time. Each strike is first written, as a line of JSON, to
the file named by `TIDEWHEEL_SHOP_FAULT_LOG`, so that what was injected can be counted although the process
died.

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
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.errors import UnknownChoice

if TYPE_CHECKING:
    from collections.abc import Mapping

FAULTS_VARIABLE = "TIDEWHEEL_SHOP_FAULTS"
FAULT_LOG_VARIABLE = "TIDEWHEEL_SHOP_FAULT_LOG"
EXIT_BY_FAULT = 86
ARMED = re.compile(r"(?P<name>[a-z-]+)(?P<mode>[@/])(?P<count>[1-9][0-9]*)")


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


@dataclass(slots=True, frozen=True)
class Trigger:
    """When an armed fault strikes: at the n-th time only, or every n-th time."""

    count: int
    once: bool

    def strikes(self, reached: int) -> bool:
        """Whether the point that has now been reached that often is struck."""
        return reached == self.count if self.once else reached % self.count == 0


@dataclass(slots=True)
class Faults:
    """The armed faults of one process."""

    triggers: dict[Fault, Trigger] = field(default_factory=dict)
    log_path: Path | None = None
    _reached: Counter[Fault] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Faults:
        """The faults that the environment arms; usually none.

        Raises:
            UnknownChoice: when the variable cannot be read.
        """
        armed = filter(None, environment.get(FAULTS_VARIABLE, "").split(","))
        log_path = environment.get(FAULT_LOG_VARIABLE)
        return cls(dict(map(parse, armed)), Path(log_path) if log_path else None)

    def strikes(self, fault: Fault, subject: str) -> bool:
        """Count that a point was reached for `subject`; whether it is struck this time, and written down."""
        trigger = self.triggers.get(fault)
        if trigger is None:
            return False
        with self._lock:
            self._reached[fault] += 1
            if not trigger.strikes(self._reached[fault]):
                return False
            self._write_down(fault, subject)
        return True

    def die_if_struck(self, fault: Fault, subject: str) -> None:
        """End the process as a crash does, without any cleaning up, when the point is struck."""
        if self.strikes(fault, subject):
            os._exit(EXIT_BY_FAULT)

    def _write_down(self, fault: Fault, subject: str) -> None:
        if self.log_path is not None:
            line = {"fault": fault, "subject": subject, "at_ms": time.time_ns() // 1_000_000}
            with self.log_path.open("a") as log:
                log.write(json.dumps(line) + "\n")


def parse(armed: str) -> tuple[Fault, Trigger]:
    """Read one armed fault, `name@n` or `name/n`."""
    found = ARMED.fullmatch(armed)
    if found is None or found["name"] not in list(Fault):
        raise UnknownChoice(
            f"{FAULTS_VARIABLE} holds {armed!r}; it takes NAME@N or NAME/N of {', '.join(Fault)}."
        )
    return Fault(found["name"]), Trigger(int(found["count"]), once=found["mode"] == "@")
