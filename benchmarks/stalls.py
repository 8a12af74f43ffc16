"""Delay of other calls by one turn of the broker's loop, under a combined load.

    python benchmarks/stalls.py FOLDER [--minutes 10] [--timers 1000000] [--halves 200000] [--worst 12]

In one process, over a real disk in an empty folder: a live broker with `--timers` pending timers and
`--halves` open halves, while messages, delayed messages and halves are sent, received and acknowledged,
checkpoints run every few seconds, retention deletes small segments, and the metrics are scraped once a
second. Prints JSON:

    turn_ms    processor time of the loop's thread in a turn of the loop: counts above bounds, the maximum
    worst      the worst turns: time, milliseconds, and the longest callbacks
    ping_ms    wall time from the call of another thread to its execution by the loop

The loop is Python's, whose turns can be measured; in production a broker runs on libuv's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from parts.turns import Turns

from commitlog import limits
from commitlog.disk.real_disk import RealDisk
from commitlog.log.retention import RetentionPolicy
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import parse_tags
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Resolution
from services.live.errors import ResultUnknown
from services.live.live_broker import LiveBroker
from services.ops.metrics.broker_metrics import Metrics
from services.ops.probes import Probes
from services.process.memory import WholeLooks, keep_little
from services.server.parts import share_interpreter

TOPIC, GROUP = "orders", "carts"
BODY = bytes(range(256))
DAY_MS = 86_400_000
SECOND = 1_000_000_000
PRELOADED = 500
SEND_SECONDS, CHECKPOINT_SECONDS, SCRAPE_SECONDS, PING_SECONDS = 0.02, 4.0, 1.0, 0.01
SENT, DELAYED, HALVES, LEFT_OPEN_EACH = 16, 4, 2, 5


class Pings:
    """A thread that schedules callbacks on the loop, and their delays in ms."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.waits_ms = loop, list[float]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        answered = threading.Event()
        while not self._stop.wait(PING_SECONDS):
            answered.clear()
            began = time.perf_counter()
            self._loop.call_soon_threadsafe(answered.set)
            answered.wait()
            self.waits_ms.append((time.perf_counter() - began) * 1000)

    def told(self) -> dict[str, float]:
        """Stop the thread; return percentiles of the delays."""
        self._stop.set()
        cuts = statistics.quantiles(self.waits_ms, n=10_000, method="inclusive")
        shares = {"p50": 4_999, "p99": 9_899, "p999": 9_989, "p9999": 9_998}
        told = {name: round(cuts[place], 2) for name, place in shares.items()}
        return {"count": len(self.waits_ms), **told, "max": round(max(self.waits_ms), 2)}


class Load:
    """The combined load on a broker."""

    def __init__(self, live: LiveBroker, metrics: Metrics) -> None:
        self._live, self._probes = live, Probes(live, metrics, dict)
        self._sent = self._halves = 0
        self.counts = {"sent": 0, "halves": 0, "received": 0, "checkpoints": 0, "scrapes": 0}

    async def preload(self, timers: int, halves: int) -> None:
        """Set timers over a month, and leave halves open whose check-backs are due in 1 to 6 minutes."""
        now_ms, in_flight = self._live.now_ms(), set[asyncio.Task[Any]]()
        for first in range(0, timers + halves, PRELOADED):
            numbers = range(first, min(first + PRELOADED, timers + halves))
            batch = [
                self._message(delivery_ms=now_ms + DAY_MS + number * 7_919 % (30 * DAY_MS))
                if number < timers
                else self._message(transactional=True, check_immunity_ms=60_000 + number % 300_000)
                for number in numbers
            ]
            in_flight.add(asyncio.ensure_future(self._live.send_many(batch)))
            if len(in_flight) > 8:
                _, in_flight = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(in_flight)

    async def run(self, seconds: float) -> None:
        """Run all parts of the load for `seconds`."""
        parts = (self._produce(), self._consume(), self._consume(), self._checkpoint(), self._scrape())
        tasks = [asyncio.ensure_future(part) for part in parts]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    def _message(self, **given: Any) -> Message:
        self._sent += 1
        name = f"{self._sent:033d}"
        return Message(topic=TOPIC, body=BODY, message_id=f"M{name}", keys=(f"order-{name}",), **given)

    async def _produce(self) -> None:
        while True:
            now_ms = self._live.now_ms()
            batch = [self._message() for _ in range(SENT)]
            batch += [self._message(delivery_ms=now_ms + 500 + 997 * n) for n in range(DELAYED)]
            batch += [self._message(transactional=True) for _ in range(HALVES)]
            answers: list[Any] = await self._live.send_many(batch)
            self.counts["sent"] += len(batch)
            for receipt in answers[-HALVES:]:
                self._halves += 1
                if self._halves % LEFT_OPEN_EACH:
                    named = (TOPIC, receipt.transaction_id, receipt.message_id)
                    await self._live.call(self._live.core.transactions.end, *named, Resolution.COMMIT)
                    self.counts["halves"] += 1
            await asyncio.sleep(SEND_SECONDS)

    async def _consume(self) -> None:
        everything = parse_tags("*")
        while True:
            found = await self._live.receivers.receive(
                GROUP, TOPIC, everything, 32, 60_000, "client-1", False, 5
            )
            ack = self._live.core.receiving.ack
            acks = (self._live.call(ack, GROUP, TOPIC, one.receipt_handle) for one in found)
            await asyncio.gather(*acks)
            self.counts["received"] += len(found)

    async def _checkpoint(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            self._live.core.housekeeping.wants_checkpoint = True
            self._live._flush_and_plan()
            self.counts["checkpoints"] += 1

    async def _scrape(self) -> None:
        request: Any = None
        while True:
            await asyncio.sleep(SCRAPE_SECONDS)
            await self._probes.scrape(request)
            self.counts["scrapes"] += 1


async def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Preload the broker, run the load, and return the figures."""
    loop = asyncio.get_running_loop()
    turns = Turns(given.worst)
    settings = BrokerSettings(
        segment_bytes=limits.SEGMENT_BYTES_SMALL,
        retention=RetentionPolicy(log_bytes_max=16 * limits.SEGMENT_BYTES_SMALL),
        housekeeping_ms=2_000,
    )
    with ThreadPoolExecutor(limits.FLUSHES_IN_FLIGHT_MAX + 1) as writer:
        live = LiveBroker(RealDisk(folder), settings, now_ms, loop.call_later, writer)
        load = Load(live, Metrics(live, ()))
        WholeLooks(loop.call_later)
        await live.call(live.core.topics.create, TOPIC, MessageType.MIXED, 4)
        turns.watch(loop)
        await load.preload(given.timers, given.halves)
        preloaded = turns.told()
        turns.restart()
        pings, segments = Pings(loop), live.core._log.first_offset
        try:
            await load.run(given.minutes * 60)
        except ResultUnknown:
            await live.broken  # raises the cause
            raise
        pending = {"timers": live.core.gauges().pending_timers, "halves": live.core.gauges().open_halves}
        load.counts["segments_deleted"] = (live.core._log.first_offset - segments) // settings.segment_bytes
        told = turns.told() | {"ping_ms": pings.told(), "counts": load.counts, "pending": pending}
        await asyncio.sleep(1)  # a checkpoint may be in progress
        await live.close()
    return told | {"preload": preloaded if given.preload else preloaded["turn_ms"]}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--halves", type=int, default=200_000)
    parser.add_argument("--worst", type=int, default=12)
    parser.add_argument("--preload", action="store_true", help="list the worst turns of the preload, too")
    return parser.parse_args()


if __name__ == "__main__":
    keep_little()
    share_interpreter(is_crowded=False)
    print(json.dumps(asyncio.run(measure(arguments().folder, arguments())), indent=1))
