"""What a leader's core can write through an engine, and how fast a node with an empty disk takes it in.

    write    a replica is opened, stands, and leads; its core takes sends in a loop, with no port before it,
             and its flushes go through the engine, one under way while the core goes on
    fold     a replica is opened on an empty disk, and takes the log from its first record to its last

Each in a process of its own: a pair is a leader and a node that was made from nothing, of one history.
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
from commitlog.message import Message
from commitlog.real_disk import RealDisk
from parts.shell import Shell, memory, real_ms
from services.broker.spine.settings import BrokerSettings
from services.cluster.node import HOLDER_BYTES, monotonic_ms
from services.cluster.replica import Replica
from sharedlog.engine import Engine, Head
from sharedlog.engines import beginning_of, engine_of
from sharedlog.fold import Position
from sharedlog.leading import Candidate
from sharedlog.reading import READ_BYTES
from sharedlog.record import encode

TOPIC: Final = "orders"
TURN_SENDS: Final = 64
"""How many sends a turn of a busy broker's loop takes, at most."""
MIB: Final = 1 << 20


def write(url: str, where: str, body_bytes: str, seconds: str) -> dict[str, Any]:
    """Lead, and write messages with bodies of so many bytes for so long."""
    engine = engine_of(url)
    disk, replica = opened(engine, Path(where))
    stand(engine, replica)
    replica.start_lead(engine, real_ms(), monotonic_ms)
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
    """Take the whole log in, that holds so many messages, on an empty disk."""
    engine = engine_of(url)
    began, used = time.perf_counter(), processor_seconds()
    _, replica = opened(engine, Path(where))
    take_all(engine, replica)
    figures = rates(replica.core.end_offset, int(count), began, used)
    engine.close()
    return figures | memory()


def opened(engine: Engine, root: Path) -> tuple[RealDisk, Replica]:
    """Return a disk that is empty, and a replica on it."""
    root.mkdir()
    genesis, disk = beginning_of(engine), RealDisk(root)
    settings = BrokerSettings(segment_bytes=genesis.facts["segment_bytes"], sync_flush=False)
    store_format.open_format(disk, settings.segment_bytes)
    return disk, Replica.open(disk, settings, real_ms(), genesis.cluster)


def take_all(engine: Engine, replica: Replica) -> None:
    """Take what the log has, with checkpoints where a node that follows makes them."""
    while found := engine.read(replica.fold.next_offset, READ_BYTES):
        for one in found:
            replica.take_record(one.offset, one.stored, real_ms())
        if replica.core.is_checkpoint_due:
            replica.checkpoint(real_ms())


def stand(engine: Engine, replica: Replica) -> None:
    """Let a replica lead: nobody else does."""
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
    """Return a message whose id is as long as clients make them."""
    return Message(
        topic=TOPIC, body=bytes(body_bytes), message_id=f"M{number:033d}", born_ms=1_763_700_000_000
    )


def rates(log_bytes: int, count: int, began: float, used: float) -> dict[str, Any]:
    """Return what was done a second, by the log's bytes, and its processor time."""
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
    """Return the processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
