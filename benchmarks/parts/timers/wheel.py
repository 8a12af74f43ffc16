"""`wheel`: the shipped core on a real disk, 256-byte bodies, unique keys, and a restart.

The clock is real in `uniform` and `restarted`. In `minute` all timers are due within one minute, at least an
hour ahead; then the clock jumps to half a minute before it and continues at the rate of a real one.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from parts.shell import BATCH, DAY_MS, TOPIC, Shell, disk_bytes, memory, message, real_ms
from services.broker.spine.values import SendReceipt, TimerName, Verdict

SPAN_MS = 30 * DAY_MS
AHEAD_MS = 3_600_000
MINUTE_MS = 60_000
SAMPLE = 50_000
TOLD_OF = 1_000_000
LEAD_MS = 30_000
WATCHED_SECONDS = 10.0


def set_all(shell: Shell, count: int, from_ms: int, span_ms: int) -> dict[str, Any]:
    """Set timers uniform over a span, in batches; return the figures."""
    dice = random.Random(1)
    unwritten_counts: list[int] = []
    core_seconds = 0.0
    began = time.perf_counter()
    for first in range(0, count, BATCH):
        due = [from_ms + dice.randrange(span_ms) for _ in range(min(BATCH, count - first))]
        batch = [message(first + number, due_ms) for number, due_ms in enumerate(due)]
        entered = time.perf_counter()
        answers = shell.core.sending.send_many(batch, shell.clock())
        core_seconds += time.perf_counter() - entered
        refused = [answer for answer in answers if not isinstance(answer, SendReceipt)]
        assert not refused, refused[0]
        shell.turn()
        unwritten_counts.append(shell.core.timers.partitions.unwritten_count)
        if first % TOLD_OF == 0:
            tell(first, began, shell.checkpoint_count)
    shell.durable()
    seconds = time.perf_counter() - began
    return {
        "count": count,
        "set_per_second": round(count / seconds),
        "set_seconds": round(seconds, 1),
        "share_in_set_timers": round(core_seconds / seconds, 2),
        "checkpoints": shell.checkpoint_count,
        "checkpoint_seconds": round(shell.checkpoint_seconds, 1),
        "unwritten_timers_at_most": max(unwritten_counts),
        "at_the_end": memory(),
    }


def tell(count: int, began: float, checkpoint_count: int) -> None:
    """Print the progress to stderr: setting takes minutes."""
    seconds = time.perf_counter() - began
    text = f"{count} set in {seconds:.0f} s, {checkpoint_count} checkpoints, {memory()}"
    print(text, file=sys.stderr, flush=True)


def uniform(where: str, count: str) -> dict[str, Any]:
    """Set timers, cancel and move by key with all pending; then exit without closing the store."""
    shell = Shell(Path(where))
    figures = set_all(shell, int(count), real_ms() + MINUTE_MS, SPAN_MS)
    shell.settle()
    stored = disk_bytes(Path(where)) | {"commitlog": shell.core.end_offset}
    stored["all"] = sum(stored.values())
    figures["disk_bytes_per_timer"] = {part: round(taken / int(count), 1) for part, taken in stored.items()}
    sample = min(SAMPLE, int(count) // 4)
    numbers = random.Random(2).sample(range(int(count)), 2 * sample)
    figures["verbs_on"] = sample
    figures["cancels_by_key_per_second"] = rate(shell, numbers[:sample], cancel)
    figures["moves_by_key_per_second"] = rate(shell, numbers[sample:], move)
    figures |= memory()
    print(json.dumps(figures), flush=True)
    os._exit(0)


def rate(shell: Shell, numbers: list[int], verb: Any) -> int:
    """Return durable verbs per second, in batches as large as those of the sets."""
    began, moved_ms = time.perf_counter(), real_ms() + 2 * SPAN_MS
    for first in range(0, len(numbers), BATCH):
        for number in numbers[first : first + BATCH]:
            verb(shell, TimerName(TOPIC, key=f"order-{number}"), moved_ms)
        shell.turn()
    shell.durable()
    return round(len(numbers) / (time.perf_counter() - began))


def cancel(shell: Shell, name: TimerName, moved_ms: int) -> None:
    """Cancel a timer by its key; it may already have been delivered."""
    verdict = shell.core.timers.cancel(name, "", shell.clock()).verdict
    assert verdict in (Verdict.CANCELLED, Verdict.TOO_LATE), verdict


def move(shell: Shell, name: TimerName, moved_ms: int) -> None:
    """Move a timer by its key; it may already have been delivered."""
    verdict = shell.core.timers.move(name, moved_ms, shell.clock()).verdict
    assert verdict in (Verdict.MOVED, Verdict.TOO_LATE), verdict


def restarted(where: str, is_clean: str) -> dict[str, Any]:
    """Open a store, wait for the next deliveries, and stop cleanly; return the figures."""
    began = time.perf_counter()
    shell = Shell(Path(where))
    seconds = time.perf_counter() - began
    opened_ms, after_open = real_ms(), memory()
    pending_count = shell.core.gauges().pending_timers
    queues = {queue: shell.core.finding.queue_range(TOPIC, queue)[1] for queue in range(4)}
    late = watched(shell, queues, opened_ms)
    figures = {
        "open_seconds": round(seconds, 2),
        "pending": pending_count,
        "after_open": after_open,
        "deliveries_due_after_open": len(late),
        "lateness_ms_of_the_next": late[0] if late else None,
        "lateness_ms_max": max(late, default=None),
        **memory(),
    }
    shell.checkpoint()
    shell.close()
    return figures


def watched(shell: Shell, queues: dict[int, int], opened_ms: int) -> list[int]:
    """Wait `WATCHED_SECONDS`; return the lateness of the durable deliveries, in order of due time."""
    found: list[tuple[int, int]] = []
    ends = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < ends:
        due_ms = shell.core.next_due_ms()
        wait_ms = 50 if due_ms is None else due_ms - real_ms()
        time.sleep(min(max(wait_ms, 0), 50) / 1000)
        shell.turn()
        shell.durable()
        now_ms = real_ms()
        for queue in queues:
            for delivery in shell.core.finding.read(TOPIC, queue, queues[queue], 32):
                queues[queue] = delivery.queue_offset + 1
                due_ms = delivery.message.delivery_ms or 0
                if due_ms >= opened_ms:
                    found.append((due_ms, now_ms - due_ms))
    return [late_ms for _, late_ms in sorted(found)]


def minute(where: str, count: str) -> dict[str, Any]:
    """Set timers all due within one minute, then deliver them while the clock passes the minute."""
    clock = Leaping()
    shell = Shell(Path(where), clock)
    due_ms = real_ms() // MINUTE_MS * MINUTE_MS + MINUTE_MS + set_span_ms(int(count))
    figures = set_all(shell, int(count), due_ms, MINUTE_MS)
    shell.settle()
    figures["after_set"] = memory()
    began = time.perf_counter()
    approach(shell, clock, due_ms - LEAD_MS)
    figures["approach_seconds"] = round(time.perf_counter() - began, 1)
    figures |= delivered(shell, int(count), due_ms)
    figures |= memory()
    shell.close()
    return figures


def set_span_ms(count: int) -> int:
    """Return an hour plus the time allowed to set `count` timers, in milliseconds."""
    return AHEAD_MS + count // 5


class Leaping:
    """A clock: real time plus the sum of its jumps."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def __call__(self) -> int:
        return real_ms() + self.offset_ms


def approach(shell: Shell, clock: Leaping, until_ms: int) -> None:
    """Advance the clock from one event to the next, and complete the disk work of each."""
    while (now_ms := clock()) < until_ms:
        due_ms = shell.core.next_due_ms()
        clock.offset_ms += max(0, min(due_ms or until_ms, until_ms) - now_ms)
        shell.turn()
        shell.settle()


def delivered(shell: Shell, count: int, due_ms: int) -> dict[str, Any]:
    """Deliver all timers at the rate of the clock; return the rate and the lateness."""
    assert shell.core.gauges().pending_timers == count, "nothing is due yet"
    while shell.core.gauges().pending_timers:
        before = shell.core.end_offset
        shell.turn()
        if shell.core.end_offset == before:
            time.sleep(0.001)
    shell.durable()
    last_ms = shell.clock() - due_ms
    queues = [shell.core.finding.queue_range(TOPIC, queue)[1] for queue in range(4)]
    assert sum(queues) == count, f"{count} timers, {sum(queues)} deliveries"
    return {
        "deliveries": sum(queues),
        "seconds_from_first_due_to_last_durable": last_ms / 1000,
        "deliveries_per_second": round(count / (last_ms / 1000)),
        "rate_is_limited_by_the_minute_itself": last_ms <= MINUTE_MS + 1_000,
        "lateness_by_cause": {
            cause: number for (_, cause), number in shell.core.statistics.lateness_by_cause.items()
        },
    }
