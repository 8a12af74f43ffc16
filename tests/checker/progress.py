"""Progress between faults: the waiting time of each subject, line by line of a history.

    calm          from the end of a fault, once a node leads, to the next fault, as given by `calm` lines
    half          waits from the due time of its first check-back (`DUE_MS` after its send was answered ok)
                  until its producer gets a check-back or ends it; only for halves whose producer answers
                  check-backs (`asks`)
    group         a message group waits while it has a message whose send was answered ok and whose
                  acknowledgement was not tried: since the group's last delivery or first acknowledgement of
                  a message, or since that send
    clients       wait for any send that is answered ok

A subject that waits longer than `LATE_MS` within one calm is late. Time outside of a calm is not counted. A
message with an unknown acknowledgement may be done, so its group does not wait for it. Halves sent while a
clock was off are due by that clock, and are excluded.

Cost: constant per line. Limitation: only the first check-back of a half is verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LATE_MS = 45_000
DUE_MS = 8_000
"""The immunity of a half plus the broker's interval between checks."""
CLIENTS = "clients"
Subject = tuple[str, str]
"""(kind, name): the name is a half's id or a message group's name."""


class Waiting:
    """The waiting subjects, and their start times; times in ms of the observer's clock."""

    def __init__(self) -> None:
        self.late: dict[Subject, int] = {}
        """Subjects that waited too long within one calm, and for how many ms."""
        self.longest_ms: dict[str, int] = {}
        """The longest waiting time of each kind within one calm."""
        self.calm_count = self.calm_ms = 0
        """Number and total duration of the calms."""
        self._since: dict[Subject, int] = {}
        self._calm_from: int | None = None
        self._sends: dict[int, dict[str, Any]] = {}
        self._group_of: dict[str, str] = {}
        self._ready: dict[str, dict[str, int]] = {}
        """By message group: messages answered ok and not yet tried, with the time of the answer."""
        self._done: set[str] = set()
        """Halves that had a check-back or ended, and messages whose acknowledgement was tried."""

    def take(self, line: dict[str, Any]) -> None:
        """Process the next line of a history."""
        kind, now_ms = line["type"], int(line.get("time_ms", 0))
        if kind == "invoke":
            self._invoked(line, now_ms)
        elif kind == "ok" and line["call"] in self._sends:
            self._sent(self._sends.pop(line["call"]), now_ms)
        elif kind == "seen" and (group := self._group_of.get(line["id"])) is not None:
            self._go_on("group", group, now_ms, is_waiting=bool(self._ready[group]))
        elif kind == "came":
            self._tried(line["id"], now_ms)
        elif kind == "asked":
            self._half_is_done(line["id"], now_ms)
        elif kind == "clock":
            self._forget_halves(int(line["from_ms"]))
        elif kind == "calm":
            self._calm(is_calm=bool(line["is_calm"]), now_ms=now_ms)

    def pending(self, now_ms: int, before_ms: int | None = None) -> dict[Subject, int]:
        """Return the waiting subjects with their ms in this calm; with `before_ms` those waiting then."""
        if self._calm_from is None:
            return {}
        start_ms = self._calm_from
        found = {of: since for of, since in self._since.items() if since <= (before_ms or now_ms)}
        return {of: now_ms - max(since, start_ms) for of, since in found.items()}

    def _invoked(self, line: dict[str, Any], now_ms: int) -> None:
        verb = line["verb"]
        if verb == "send":
            self._sends[line["call"]] = line
        elif verb == "end":
            self._half_is_done(line["id"], now_ms)
        elif verb == "ack":
            self._tried(line["id"], now_ms)

    def _tried(self, name: str, now_ms: int) -> None:
        """Record that an acknowledgement of a message was tried, or that a push consumer got the message."""
        if name in self._done:
            return
        self._done.add(name)
        if (group := self._group_of.get(name)) is not None:
            self._ready[group].pop(name, None)
            self._go_on("group", group, now_ms, is_waiting=bool(self._ready[group]))

    def _sent(self, send: dict[str, Any], now_ms: int) -> None:
        self._go_on(CLIENTS, "", now_ms, is_waiting=True)
        name, line = send["id"], send.get("line", "")
        if send.get("asks") and name not in self._done:
            self._since["half", name] = now_ms + DUE_MS
        if send["kind"] == "fifo" and line:
            group = self._group_of.setdefault(name, f"{send['topic']}/{line}")
            ready = self._ready.setdefault(group, {})
            if name not in self._done:
                ready[name] = now_ms
                self._since.setdefault(("group", group), now_ms)

    def _half_is_done(self, name: str, now_ms: int) -> None:
        self._done.add(name)
        self._go_on("half", name, now_ms, is_waiting=False)

    def _forget_halves(self, since_ms: int) -> None:
        """Remove halves whose check-back is due since a clock was off."""
        gone = [of for of, due_ms in self._since.items() if of[0] == "half" and due_ms >= since_ms]
        for one in gone:
            del self._since[one]

    def _go_on(self, kind: str, name: str, now_ms: int, *, is_waiting: bool) -> None:
        """Record progress of a subject, and whether it waits again from now on."""
        of = kind, name
        if of in self._since:
            self._look(of, now_ms)
            del self._since[of]
        if is_waiting:
            self._since[of] = now_ms

    def _look(self, of: Subject, now_ms: int) -> None:
        """Record the waiting time of a subject."""
        if self._calm_from is None or of not in self._since:
            return
        waited_ms = max(0, now_ms - max(self._since[of], self._calm_from))
        self.longest_ms[of[0]] = max(waited_ms, self.longest_ms.get(of[0], 0))
        if waited_ms > LATE_MS:
            self.late[of] = max(waited_ms, self.late.get(of, 0))

    def _calm(self, *, is_calm: bool, now_ms: int) -> None:
        for of in list(self._since):
            self._look(of, now_ms)
        if self._calm_from is not None:
            self.calm_ms += now_ms - self._calm_from
        self._calm_from = now_ms if is_calm else None
        self.calm_count += is_calm
        if is_calm:
            self._since.setdefault((CLIENTS, ""), now_ms)


def told_late(late: dict[Subject, int]) -> Iterator[str]:
    """Yield a sentence for each late subject."""
    for (kind, name), waited_ms in late.items():
        seconds = f"for {waited_ms / 1000:.0f} s without a fault"
        yield {
            "half": f"Nobody was asked about the half {name} {seconds}.",
            "group": f"The message group {name} had something ready, and nothing of it came {seconds}.",
            CLIENTS: f"No send was told ok {seconds}.",
        }[kind]
