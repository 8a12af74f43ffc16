"""Receiving from the broker's core alone: no server, no client, a real disk with syncs.

Consumers take turns: all receive a batch, then all acknowledge, and one flush each makes that durable, as for
calls in one turn of the live broker's loop.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from commitlog import limits
from commitlog.records.message import Message
from consumequeue.filters.filter import parse_tags
from parts import store_builder
from parts.shell import Shell, memory
from services.broker.spine.values import Delivery

BATCH = limits.RECEIVE_BATCH_MAX
GROUP, TOPIC, FIFO_TOPIC = "stopwatch", store_builder.TOPIC, "lines"
EVERYTHING = parse_tags("*")
LEASE_MS = limits.INVISIBLE_MS_MAX
MESSAGE_GROUPS = 2_048
FIFO_SENT = 100_000
CONSUMED = 6_400
BACKLOG_CONSUMERS = 8
WINDOWS = 20


def build(where: str, count: str) -> int:
    """Build a store of `count` messages; return the bytes of its log."""
    return store_builder.build(Path(where), int(count))


def rate(where: str, consumers: str, seconds: str) -> dict[str, Any]:
    """Let `consumers` receive and acknowledge for `seconds`; return the figures."""
    return turns(Shell(Path(where)), TOPIC, int(consumers), float(seconds))


def fifo(where: str, consumers: str, seconds: str) -> dict[str, Any]:
    """Do the same with messages in 2,048 message groups, whose leases are durable before the answer."""
    shell = Shell(Path(where))
    for number in range(FIFO_SENT):
        group = f"customer-{number % MESSAGE_GROUPS}"
        name = f"M{number:033d}"
        message = Message(topic=FIFO_TOPIC, body=bytes(256), message_id=name, message_group=group)
        shell.core.sending.send(message, shell.clock())
        if number % 1_000 == 999:
            shell.turn()
    shell.settle()
    return turns(shell, FIFO_TOPIC, int(consumers), float(seconds))


def turns(shell: Shell, topic: str, consumers: int, seconds: float) -> dict[str, Any]:
    """Let consumers take turns until no message is left or the time is over; return the figures."""
    first_offset, count = shell.core.end_offset, 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        taken = turn(shell, topic, consumers)
        count += taken
        if not taken:
            break
    took = time.perf_counter() - began
    return {
        "received_and_acknowledged_per_second": round(count / took),
        "log_bytes_per_message": round((shell.core.end_offset - first_offset) / count, 2),
        "count": count,
    }


def turn(shell: Shell, topic: str, consumers: int) -> int:
    """Let each consumer receive and acknowledge a batch; return the number of messages."""
    batches = [receive(shell, topic) for _ in range(consumers)]
    shell.settle()
    for batch in batches:
        for delivery in batch:
            shell.core.receiving.ack(GROUP, topic, delivery.receipt_handle, shell.clock())
    shell.settle()
    return sum(map(len, batches))


def receive(shell: Shell, topic: str, count: int = BATCH) -> list[Delivery]:
    """Lease a batch."""
    wish = (GROUP, topic, EVERYTHING, count, LEASE_MS, "consumer", False)
    return shell.core.receiving.receive(*wish, shell.clock()).deliveries


def log_bytes(where: str, acknowledged_at_once: str) -> float:
    """Return the bytes of log for each consumed message, with `acknowledged_at_once` of them per flush."""
    shell, at_once = Shell(Path(where)), int(acknowledged_at_once)
    turn(shell, TOPIC, 1)
    first_offset = shell.core.end_offset
    for _ in range(CONSUMED // BATCH):
        batch = receive(shell, TOPIC)
        for first in range(0, BATCH, at_once):
            for delivery in batch[first : first + at_once]:
                shell.core.receiving.ack(GROUP, TOPIC, delivery.receipt_handle, shell.clock())
            shell.settle()
    return round((shell.core.end_offset - first_offset) / CONSUMED, 2)


def backlog(where: str, count: str) -> dict[str, Any]:
    """Consume a backlog except its first message, which stays leased; return the figures of its windows."""
    shell, windows = Shell(Path(where)), []
    figures: dict[str, Any] = {"opened": memory()}
    [stuck] = receive(shell, TOPIC, 1)
    began, done, first_offset = time.perf_counter(), 1, shell.core.end_offset
    while done < int(count):
        entered, before = time.perf_counter(), done
        while done < min(int(count), before + int(count) // WINDOWS):
            done += turn(shell, TOPIC, BACKLOG_CONSUMERS)
        seconds = time.perf_counter() - entered
        windows.append({"up_to": done, "per_second": round((done - before) / seconds), **memory()})
        print(f"{done} in {time.perf_counter() - began:.0f} s, {memory()}", file=sys.stderr, flush=True)
    shell.core.receiving.ack(GROUP, TOPIC, stuck.receipt_handle, shell.clock())
    shell.settle()
    left = receive(shell, TOPIC)
    assert not left
    return figures | {
        "start": windows[0],
        "middle": windows[len(windows) // 2],
        "end": windows[-1],
        "slowest_window_per_second": min(window["per_second"] for window in windows),
        "log_bytes_per_message": round((shell.core.end_offset - first_offset) / int(count), 2),
        "acknowledged": memory(),
    }
