"""The history that client processes write to one file, read by the test as it grows.

    line of the file   ->   History (what `histories` judges)   and   Waiting (what waits, `checker/progress`)

Order and times are those of the file: each line has the writer's monotonic clock, which is the machine's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.checker.progress import Waiting
from tests.endurance.histories import Delivered, History, Outcome, Sent
from tests.endurance.watching import Watcher
from tests.history_file import HistoryFile

OUTCOMES = {"ok": Outcome.OK, "fail": Outcome.REFUSED, "unknown": Outcome.UNKNOWN}


class Reading:
    """What the file has said so far; the test writes there, too."""

    def __init__(self, path: Path) -> None:
        self.path, self.waiting = path, Waiting()
        self.history = History(watcher=Watcher(HistoryFile(path)))
        self._file = path.open("rb")
        self._calls: dict[int, dict[str, Any]] = {}
        self._rest = b""
        self._send_counts: dict[str, int] = {}

    def read(self) -> None:
        """Take what was written since the last look."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            told = json.loads(line)
            self.waiting.take(told)
            if (take := getattr(self, f"_{told['type']}", None)) is not None:
                take(told)

    def _invoke(self, told: dict[str, Any]) -> None:
        self._calls[told["call"]] = told
        history, verb, name = self.history, told["verb"], told.get("id", "")
        sent = history.sent.get(name)
        if verb == "send":
            self._send_counts[name] = 1 + self._send_counts.get(name, 0)
            if sent is None:
                history.sends(_sent(told))
        elif verb == "ack":
            history.tried_s.setdefault(name, told["s"])
        elif verb == "end" and sent is not None:
            sent.is_commit, sent.end_outcome = told["resolution"] == "commit", Outcome.UNKNOWN
        elif verb == "recall" and sent is not None:
            sent.cancel_outcome = Outcome.UNKNOWN

    def _ended(self, told: dict[str, Any]) -> None:
        call, outcome = self._calls.pop(told["call"]), OUTCOMES[told["type"]]
        history, verb, name = self.history, call["verb"], call.get("id", "")
        if verb != "receive":
            history.outcomes[f"{verb} {outcome.value}"] += 1
        sent = history.sent.get(name)
        if verb == "send":
            assert sent is not None, "a send that ends has begun"
            self._send_ended(sent, outcome)
            if outcome is Outcome.OK:
                history.acknowledged_sends_s.append(told["s"])
        elif verb == "ack" and outcome is Outcome.OK:
            history.acknowledged_s.setdefault(name, told["s"])
        elif verb == "end" and sent is not None:
            sent.end_outcome = outcome
        elif verb == "recall" and sent is not None:
            sent.cancel_outcome = outcome

    _ok = _fail = _unknown = _ended

    def _send_ended(self, sent: Sent, outcome: Outcome) -> None:
        """One ok binds; one refusal does so only if nothing else was tried."""
        if outcome is Outcome.OK or (outcome is Outcome.REFUSED and self._send_counts[sent.message_id] == 1):
            sent.outcome = outcome

    def _seen(self, told: dict[str, Any]) -> None:
        call = self._calls[told["call"]]
        place = call["topic"], told["queue"], told["offset"]
        seen = Delivered(told["id"], place, call["s"], told["s"], told["time_ms"])
        self.history.delivered.append(seen)

    def _asked(self, _: dict[str, Any]) -> None:
        self.history.outcomes["check-back"] += 1

    def _came(self, told: dict[str, Any]) -> None:
        """Take what a push consumer got: nobody knows when its receive began, or how it was acknowledged."""
        self.history.outcomes["came to a push consumer"] += 1
        self.history.tried_s.setdefault(told["id"], told["s"])
        place = told["topic"], -1, -1
        self.history.delivered.append(Delivered(told["id"], place, 0.0, told["s"], told["time_ms"]))


def _sent(told: dict[str, Any]) -> Sent:
    """Return a message as its first send tells of it."""
    group = told["line"]
    number = told.get("number") or (int(told["id"].rpartition("-")[2]) if group else 0)
    sent = Sent(told["id"], told["topic"], Outcome.UNKNOWN, told["due_ms"], group, number)
    sent.is_half, sent.began_ms = told["kind"] == "half", told["time_ms"]
    return sent
