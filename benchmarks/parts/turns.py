"""Processor time of the turns of an event loop, and the callbacks that ran in them.

The loop is Python's, whose turns and callbacks can be measured; in production a broker runs on libuv's.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import threading
import time
from asyncio.events import Handle
from typing import Any

BOUNDS_MS = (2, 5, 10, 20, 50, 100)


class Turns:
    """The processor time of each turn of the loop, and the callbacks of the worst."""

    def __init__(self, worst: int) -> None:
        self._kept, self._worst = worst, list[tuple[int, int, list[tuple[int, str]]]]()
        self._now: list[tuple[int, str]] = []
        self.count, self.above, self.began = 0, dict.fromkeys(BOUNDS_MS, 0), time.monotonic()
        self._collected = self.collected = 0
        self.longest: tuple[int, str] = (0, "")
        """The longest callback: its processor time in ns, and its name."""

    def watch(self, loop: Any) -> None:
        """Measure every turn, callback and garbage collection from now on."""
        run_once, run = loop._run_once, Handle._run
        clock, loop_thread = time.thread_time_ns, threading.get_ident()

        def measured_run(handle: Handle) -> None:
            began, callback = clock(), handle._callback  # type: ignore[attr-defined]  # asyncio's own
            run(handle)
            if (took := clock() - began) > 500_000 and threading.get_ident() == loop_thread:
                self._now.append((took, named(callback)))
                self.longest = max(self.longest, (took, named(callback)))

        def measured_turn() -> None:
            began = clock()
            run_once()
            self._ended(clock() - began)

        def collected(phase: str, info: dict[str, int]) -> None:
            if threading.get_ident() == loop_thread:
                if phase == "start":
                    self._collected = clock()
                elif (took := clock() - self._collected) > 500_000:
                    self._now.append((took, f"gc generation {info['generation']}"))
                    self.collected = max(self.collected, took)

        Handle._run = measured_run  # type: ignore[method-assign, assignment]  # asyncio's own
        loop._run_once = measured_turn
        gc.callbacks.append(collected)

    def _ended(self, took: int) -> None:
        self.count += 1
        ran, self._now = self._now, []
        if took < 1_000_000:
            return
        for bound in BOUNDS_MS:
            self.above[bound] += took > bound * 1_000_000
        entry = (took, self.count, [*ran, (int((time.monotonic() - self.began) * 1000), "at")])
        if len(self._worst) < self._kept:
            heapq.heappush(self._worst, entry)
        else:
            heapq.heappushpop(self._worst, entry)

    def restart(self) -> None:
        """Reset all measurements."""
        self._worst, self.count, self.began, self.longest = [], 0, time.monotonic(), (0, "")
        self.collected = 0
        self.above = dict.fromkeys(BOUNDS_MS, 0)

    def told(self) -> dict[str, Any]:
        """Return the measurements."""
        worst = [
            {
                "ms": round(took / 1e6, 1),
                "at_s": ran[-1][0] / 1000,
                "ran": [f"{name} {ns / 1e6:.1f}" for ns, name in sorted(ran[:-1], reverse=True)[:4]],
            }
            for took, _, ran in sorted(self._worst, reverse=True)
        ]
        turn = {"count": self.count, "max": worst[0]["ms"] if worst else 0.0}
        above = {f"above_{bound}": count for bound, count in self.above.items()}
        return {"turn_ms": turn | above, "worst": worst}


def named(callback: Any) -> str:
    """Return the name of a callback, or of the coroutine if it is a task's."""
    callback = getattr(callback, "func", callback)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return str(getattr(callback, "__qualname__", type(callback).__name__))
