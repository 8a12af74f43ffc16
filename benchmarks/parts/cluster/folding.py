"""Rate at which a leader's core writes through an engine, and at which a node with an empty disk folds it.

    write    a replica is opened, becomes a candidate, and leads; its core takes sends in a loop, without a
             port, and its flushes go through the engine, in parallel with the core
    fold     a replica is opened on an empty disk, and folds the log from its first record to its last

Each runs in a separate process: one leader and one new node with the same history.
"""

from __future__ import annotations

import resource
import secrets
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[3]))

from commitlog import store_format
from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message
from parts.shell import Shell, memory, real_ms
from services.broker.spine.settings import BrokerSettings
from services.cluster.node import HOLDER_BYTES, monotonic_ms
from services.cluster.replica import Replica
from sharedlog.engine import Engine, Head
from sharedlog.engines import engine_of, read_genesis
from sharedlog.fold import Position
from sharedlog.leading import Candidate
from sharedlog.reading import READ_BYTES
from sharedlog.record import encode

TOPIC: Final = "orders"
TURN_SENDS: Final = 64
"""Sends per turn of the loop, the maximum of a busy broker."""
MIB: Final = 1 << 20


def write(url: str, where: str, body_bytes: str, seconds: str) -> dict[str, Any]:
    """Lead, and write messages with bodies of `body_bytes` for `seconds`; return the rates."""
    engine = engine_of(url)
    disk, replica = opened(engine, Path(where))
    stand(engine, replica)
    replica.start_leading(engine, real_ms(), monotonic_ms)
    shell = Shell(Path(where), opened=(disk, replica.core))
    first_offset, count = shell.core.end_offset, 0
    began, used = time.perf_counter(), processor_seconds()
    while time.perf_counter() - began < float(seconds):
        for _ in range(TURN_SENDS):
            shell.core.sending.send(message(count, int(body_bytes)), shell.clock())
            count += 1
        shell.turn()
    shell.settle()
    figures = rates(shell.core.end_offset - first_offset, count, began, used)
    shell.close()
    engine.close()
    return figures


def fold(url: str, where: str, count: str) -> dict[str, Any]:
    """Fold a log of `count` messages on an empty disk; return the rates and the memory."""
    engine = engine_of(url)
    began, used = time.perf_counter(), processor_seconds()
    _, replica = opened(engine, Path(where))
    take_all(engine, replica)
    figures = rates(replica.core.end_offset, int(count), began, used)
    engine.close()
    return figures | memory()


def opened(engine: Engine, root: Path) -> tuple[RealDisk, Replica]:
    """Return a new disk below `root`, and a replica on it."""
    root.mkdir()
    genesis, disk = read_genesis(engine), RealDisk(root)
    settings = BrokerSettings(segment_bytes=genesis.facts["segment_bytes"], sync_flush=False)
    store_format.open_format(disk, settings.segment_bytes)
    return disk, Replica.open(disk, settings, real_ms(), genesis.cluster)


def take_all(engine: Engine, replica: Replica) -> None:
    """Fold all records of the log, with checkpoints where a follower makes them."""
    while found := engine.read(replica.fold.next_offset, READ_BYTES):
        for one in found:
            replica.apply_next_record(one.offset, one.stored, real_ms())
        if replica.core.is_checkpoint_due:
            replica.checkpoint(real_ms())


def stand(engine: Engine, replica: Replica) -> None:
    """Make a replica the leader; there is no other candidate."""
    take_all(engine, replica)
    fold = replica.fold
    facts = {"node": "writer", "listen": "", "http": ""}
    candidate = Candidate(fold, secrets.token_bytes(HOLDER_BYTES), facts)
    head = Head(fold.epoch, fold.holder, Position(fold.end, fold.chain))
    following = Head(candidate.epoch.epoch, candidate.epoch.holder, head.position)
    engine.append_if(head, [encode(candidate.epoch)], following)
    take_all(engine, replica)
    assert candidate.has_won(fold, None), "another node leads"


def message(number: int, body_bytes: int) -> Message:
    """Return a message whose id has the length of a client's."""
    return Message(
        topic=TOPIC, body=bytes(body_bytes), message_id=f"M{number:033d}", born_ms=1_763_700_000_000
    )


def rates(log_bytes: int, count: int, began: float, used: float) -> dict[str, Any]:
    """Return rates per second in MiB of log and in messages, and the processor time of a message."""
    lasted = time.perf_counter() - began
    return {
        "mib": round(log_bytes / MIB, 1),
        "messages": count,
        "seconds": round(lasted, 2),
        "mib_per_second": round(log_bytes / MIB / lasted, 2),
        "messages_per_second": round(count / lasted),
        "processor_us_per_message": round((processor_seconds() - used) / count * 1e6, 1),
    }


def processor_seconds() -> float:
    """Return the processor time of this process, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
