"""`crowd` and `steady`: the shipped server over a store whose timers were set beforehand.

The store is built by the core alone, in a separate process that stops cleanly; then the server starts on it
before any timer is due. A delivery is durable at the first flush whose durable offset covers its record, as
noted by the server (`server.py`). No query disturbs the server during the measurement; the deliveries are
read from its store afterwards.
"""

from __future__ import annotations

import bisect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from parts.percentiles import figures
from parts.shell import BATCH, TOPIC, Shell, message, real_ms
from parts.timers.server import serving

SENT_TOPIC = "others"
SENDS_PER_SECOND = 500
SECOND_MS = 1_000
LEAD_SECONDS = 15
READ = 1_000
BARE_WRITES = 10_000
SCATTER = 15_485_863
"""A prime: its multiples modulo a count are scattered."""

Delivered = tuple[int, float]
"""(due, durable), in milliseconds since 1970."""


def prepare(where: str, count: str, from_ms: str, span_ms: str) -> dict[str, Any]:
    """Set `count` timers evenly over a span, not in due order, in a new store."""
    shell, step = Shell(Path(where)), int(span_ms) / int(count)
    began = time.perf_counter()
    for first in range(0, int(count), BATCH):
        numbers = range(first, min(first + BATCH, int(count)))
        due = [int(from_ms) + int(number * SCATTER % int(count) * step) for number in numbers]
        batch = [message(number, due_ms) for number, due_ms in zip(numbers, due, strict=True)]
        shell.core.sending.send_many(batch, shell.clock())
        shell.turn()
    shell.durable()
    seconds = time.perf_counter() - began
    shell.checkpoint()
    shell.close()
    return {"set_per_second": round(int(count) / seconds), "ready_ms": real_ms()}


def crowd(folder: Path, count: int, measured: Callable[..., Any]) -> dict[str, Any]:
    """Deliver timers that are all due within one second, while a producer sends."""
    due_ms = (real_ms() // SECOND_MS + count // 5_000 + 2 * LEAD_SECONDS) * SECOND_MS
    prepared = measured("prepare", str(folder / "store"), str(count), str(due_ms), str(SECOND_MS))
    assert prepared["ready_ms"] < due_ms - LEAD_SECONDS * SECOND_MS, "preparing took too long"
    with serving(folder / "store") as server:
        from_s, until_s = due_ms / 1000 - 3, due_ms / 1000 + 3 + count / 100_000
        producer = part(
            "produce", server["listen"], SENT_TOPIC, str(SENDS_PER_SECOND), str(from_s), str(until_s)
        )
        took = outcome(producer)
        time.sleep(1)
    found = measured("delivered", str(folder / "store"), str(folder / "notes"))
    last_ms = max(durable_ms for _, durable_ms in found)
    inside = [ms for sent_s, ms in took if due_ms / 1000 <= sent_s <= last_ms / 1000]
    return {
        "count": len(found),
        "missing": count - len(found),
        "early": sum(durable_ms < due for due, durable_ms in found),
        "seconds_until_last_durable": round((last_ms - due_ms) / 1000, 3),
        "deliveries_per_second": round(len(found) / ((last_ms - due_ms) / 1000)),
        "sends_per_second": SENDS_PER_SECOND,
        "sends_over_grpc_ms_during_the_crowd": figures(inside),
        "sends_over_grpc_ms_all": figures([ms for _, ms in took]),
        "prepared": prepared,
        "server_memory": server["memory"],
        "server_start_seconds": server["start_seconds"],
    }


def steady(folder: Path, rate: int, seconds: int, measured: Callable[..., Any]) -> dict[str, Any]:
    """Deliver `rate` timers every second: without a consumer, then with one."""
    alone = stream(folder / "alone", rate, seconds, measured, is_consumed=False)
    consumed = stream(folder / "consumed", rate, seconds, measured, is_consumed=True)
    return {"per_second": rate, "seconds": seconds, "alone": alone, "with_a_consumer": consumed}


def stream(
    folder: Path, rate: int, seconds: int, measured: Callable[..., Any], *, is_consumed: bool
) -> dict[str, Any]:
    """Deliver a stream of timers; return figures of its lateness."""
    folder.mkdir()
    count, span_ms, received = rate * seconds, seconds * SECOND_MS, []
    due_ms = (real_ms() // SECOND_MS + count // 5_000 + 2 * LEAD_SECONDS) * SECOND_MS
    prepared = measured("prepare", str(folder / "store"), str(count), str(due_ms), str(span_ms))
    assert prepared["ready_ms"] < due_ms - LEAD_SECONDS * SECOND_MS, "preparing took too long"
    with serving(folder / "store") as server:
        if is_consumed:
            received = outcome(part("consume", server["listen"], TOPIC, str(count)))
        else:
            time.sleep((due_ms + span_ms + 2 * SECOND_MS - real_ms()) / 1000)
    found = measured("delivered", str(folder / "store"), str(folder / "notes"))
    late = {"durable_append_minus_due_ms": figures([durable_ms - due for due, durable_ms in found])}
    if is_consumed:
        late["client_receipt_minus_due_ms"] = figures(received)
    late["bare_disk_write_and_sync"] = bare_disk(folder / "bare", server["notes"])
    return {"missing": count - len(found), **late, "server_memory": server["memory"]}


def bare_disk(path: Path, notes: list[list[int]]) -> dict[str, Any]:
    """Write and sync as often and as much as the server did, right after it, without other work.

    This gives the disk's part of a lateness, for the same minute of the same machine.
    """
    offsets, moments_ns = zip(*notes, strict=True)
    written = int(statistics.median(after - before for before, after in pairwise(offsets) if after > before))
    pause_s = statistics.median(after - before for before, after in pairwise(moments_ns)) / 1e9
    descriptor, took = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), []
    os.posix_fallocate(descriptor, 0, written * BARE_WRITES)
    os.fsync(descriptor)
    for number in range(BARE_WRITES):
        began = time.perf_counter()
        os.pwrite(descriptor, bytes(written), number * written)
        os.fdatasync(descriptor)
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(max(0.0, began + pause_s - time.perf_counter()))
    os.close(descriptor)
    return {"write_bytes": written, "pause_ms": round(pause_s * 1000, 2), **figures(took)}


def delivered(where: str, notes: str) -> list[Delivered]:
    """Return all deliveries of a store, with the time at which each was durable."""
    noted = json.loads(Path(notes).read_text())
    offsets = [offset for offset, _ in noted]
    shell, found = Shell(Path(where)), []
    for queue_id in range(4):
        for delivery in all_of(shell, queue_id):
            place = bisect.bisect_right(offsets, delivery.physical_offset)
            found.append((delivery.message.delivery_ms or 0, noted[place][1] / 1_000_000))
    return found


def all_of(shell: Shell, queue_id: int) -> Iterator[Any]:
    """Yield all deliveries of a queue."""
    queue_offset, end_offset = shell.core.finding.queue_range(TOPIC, queue_id)
    while queue_offset < end_offset:
        for delivery in shell.core.finding.read(TOPIC, queue_id, queue_offset, READ):
            yield delivery
            queue_offset = delivery.queue_offset + 1


def part(*words: str) -> subprocess.Popen[str]:
    """Start a part in a separate process."""
    script = Path(__file__).parents[2] / "timers.py"
    return subprocess.Popen([sys.executable, str(script), "part", *words], stdout=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen[str]) -> Any:
    """Wait for a part, and return its answer."""
    out, _ = process.communicate()
    assert process.returncode == 0, "a client failed"
    return json.loads(out.splitlines()[-1])
