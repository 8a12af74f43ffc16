"""Whether work went on while nothing was in its way: since when each thing waits, line by line of a history.

    calm          from the end of a fault, once a node leads, to the next fault: `calm` lines say so
    half          waits from its first check-back's time on (`DUE_MS` after its send was told ok), until its
                  producer is asked or ends it; only halves whose producer answers check-backs (`asks`)
    group         a message group waits while a message of it was told ok and no acknowledgement of that was
                  tried: from its last delivery or first try of one on, or from that message's send
    clients       wait for any send that is told ok

What waits longer than `LATE_MS` within one calm is late. Time outside of a calm counts for nothing. A message
whose acknowledgement is unknown may be done: its group is not held to it. What was sent while a clock was off
is due by that clock, and left out.

Cost: constant for a line. Limitation: a half is judged for its first check-back only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LATE_MS = 45_000
DUE_MS = 8_000
"""The immunity of a half, and how seldom a broker looks."""
CLIENTS = "clients"
Subject = tuple[str, str]
"""A kind, and what of it: a half's id, a message group's name."""


class Waiting:
    """What waits, and since when; times in ms of the observer's clock."""

    def __init__(self) -> None:
        self.late: dict[Subject, int] = {}
        """What waited too long within one calm, and how long."""
        self.longest_ms: dict[str, int] = {}
        """How long a subject of each kind has waited at most, within one calm."""
        self.calm_count = self.calm_ms = 0
        """How many calms there were, and how long they lasted."""
        self._since: dict[Subject, int] = {}
        self._calm_from: int | None = None
        self._sends: dict[int, dict[str, Any]] = {}
        self._group_of: dict[str, str] = {}
        self._ready: dict[str, dict[str, int]] = {}
        """Of each message group: messages that were told ok and not tried, and when."""
        self._done: set[str] = set()
        """Halves that were asked about or ended, messages that were tried."""

    def take(self, line: dict[str, Any]) -> None:
        """Take the next line of a history."""
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
        """Return what waits, and for how many ms of this calm; perhaps only what waited at a moment."""
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
        """Note that a consumer has got a message, and is done with it or tries to be."""
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
        """Forget halves that were sent since a clock was off."""
        gone = [of for of, due_ms in self._since.items() if of[0] == "half" and due_ms >= since_ms]
        for one in gone:
            del self._since[one]

    def _go_on(self, kind: str, name: str, now_ms: int, *, is_waiting: bool) -> None:
        """Note that something has gone on, and whether it waits from now on."""
        of = kind, name
        if of in self._since:
            self._look(of, now_ms)
            del self._since[of]
        if is_waiting:
            self._since[of] = now_ms

    def _look(self, of: Subject, now_ms: int) -> None:
        """Note how long something has waited."""
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
    """Yield a sentence for each thing that was late."""
    for (kind, name), waited_ms in late.items():
        seconds = f"for {waited_ms / 1000:.0f} s without a fault"
        yield {
            "half": f"Nobody was asked about the half {name} {seconds}.",
            "group": f"The message group {name} had something ready, and nothing of it came {seconds}.",
            CLIENTS: f"No send was told ok {seconds}.",
        }[kind]
