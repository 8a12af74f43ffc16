"""The store alone: durable appends, starts, reads. Prints JSON.

    .venv/bin/python benchmarks/storage.py [--records 10000000] [--rounds 3] [--folder DIR]

* appends: durable appends per second of records with 256-byte bodies, 1, 16 and 128 in flight, on a real
  disk. `log` is the CommitLog: encoding, group commit, a thread that syncs. `broker` is the live broker:
  checks, queues, key index, and for each message in flight a coroutine that waits until it is durable. The
  baseline, measured in turn with them, is one thread that writes batches of as many records, encoded
  beforehand, with pwrite and fdatasync. Medians of the rounds.
* open: duration of `Broker.open` on a store of `--records` records and memory of the process afterwards,
  after a clean stop, and after kill -9 with at least 60 MiB of log after the last snapshot. The records are
  written in bulk (`parts/store_builder.py`); the stop and the kill are those of a live broker.
* reads: random messages of that store by queue offset and by key.

Every figure is measured in a separate process. Absolute figures vary with the machine, ratios less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from parts import store_builder

from commitlog import layout, limits
from commitlog.disk.real_disk import RealDisk
from commitlog.log.log import CommitLog
from commitlog.records import properties, record
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.live.live_broker import LiveBroker

TOPIC = store_builder.TOPIC
BODY = bytes(256)
SENDS = {1: 4_000, 16: 48_000, 128: 128_000}
WARM_UP_SENDS = 1_000
READS = 20_000
UNSAVED_BYTES = limits.SNAPSHOT_LOG_BYTES - 4 * 1024 * 1024


def main() -> None:
    """Run everything, or the single part named by `--part`."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--records", type=int, default=200_000, help="how many the opened store has")
    arguments.add_argument("--rounds", type=int, default=3, help="how often appends are measured")
    arguments.add_argument("--folder", type=Path, help="where to write; else a temporary folder")
    arguments.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.part:
        name, *values = chosen.part
        print(json.dumps(PARTS[name](*values)))
        return
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        figures = {"appends": appends(Path(folder), chosen.rounds), **opens(Path(folder), chosen.records)}
    print(json.dumps(figures, indent=2))


def appends(folder: Path, rounds: int) -> list[dict[str, float]]:
    """Measure log, broker and baseline in turn, for each number of appends in flight."""
    return [beside_baseline(folder, rounds, in_flight) for in_flight in SENDS]


def beside_baseline(folder: Path, rounds: int, in_flight: int) -> dict[str, float]:
    """Return the median rates with one number of appends in flight, and their ratios to the baseline."""
    rates: dict[str, list[float]] = {"baseline": [], "log": [], "broker": []}
    for number in range(rounds):
        for part, measurements in rates.items():
            where = folder / f"{part}-{in_flight}-{number}"
            measurements.append(measured(part, str(where), str(in_flight)))
            shutil.rmtree(where)
    medians = {part: statistics.median(measurements) for part, measurements in rates.items()}
    figures: dict[str, float] = {"in_flight": in_flight}
    for part, median in medians.items():
        figures[f"{part}_per_second"] = round(median)
        if part != "baseline":
            figures[f"{part}_ratio"] = round(median / medians["baseline"], 3)
    return figures


def opens(folder: Path, records: int) -> dict[str, Any]:
    """Build a store, then open it after a clean stop and after a kill."""
    store = folder / "store"
    log_bytes = store_builder.build(store, records)
    measured("stop", str(store))
    clean = measured("open", str(store))
    reads = {how: measured("read", str(store), how) for how in ("queue offset", "key")}
    measured("kill", str(store))
    return {
        "open": {
            "records": records,
            "log_bytes": log_bytes,
            "after_clean_stop": clean,
            "after_kill": measured("open", str(store)),
        },
        "reads_per_second": reads,
    }


def measured(*part: str) -> Any:
    """Run a part in a separate process; return its answer, None if the part killed itself."""
    run = subprocess.run([sys.executable, __file__, "--part", *part], stdout=subprocess.PIPE, text=True)
    if run.returncode == -signal.SIGKILL:
        return None
    run.check_returncode()
    return json.loads(run.stdout)


def baseline(where: str, in_flight: str) -> float:
    """Return the durable appends per second of one thread with pwrite and fdatasync."""
    batch_count, batch = SENDS[int(in_flight)] // int(in_flight), encoded() * int(in_flight)
    Path(where).mkdir()
    descriptor = os.open(Path(where) / "batches", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, len(batch) * batch_count)
    os.fsync(descriptor)
    began = time.perf_counter()
    for number in range(batch_count):
        os.pwrite(descriptor, batch, number * len(batch))
        os.fdatasync(descriptor)
    seconds = time.perf_counter() - began
    return batch_count * int(in_flight) / seconds


def commit_log(where: str, in_flight: str) -> float:
    """Return the durable appends per second to the log, with `in_flight` records per flush."""
    disk, new = RealDisk(Path(where)), [record_of(one) for one in messages("M", SENDS[int(in_flight)])]
    log = CommitLog(disk, limits.SEGMENT_BYTES_DEFAULT, 0, 0)
    disk.allocate(layout.segment_path(0), limits.SEGMENT_BYTES_DEFAULT)
    with ThreadPoolExecutor(limits.FLUSHES_IN_FLIGHT_MAX) as writers:
        began = time.perf_counter()
        for first in range(0, len(new), int(in_flight)):
            for one in new[first : first + int(in_flight)]:
                log.append(one)
            flush = log.take_flush()
            assert flush is not None
            writers.submit(flush.write).result()
            log.complete_flush(flush)
        seconds = time.perf_counter() - began
    assert log.durable_offset == log.end_offset
    return len(new) / seconds


def encoded() -> bytes:
    """Return one record in the broker's format."""
    return record.encode(record_of(message("M", 0)))


def record_of(one: Message) -> Record:
    """Return a message's record, without an offset."""
    return Record(topic=TOPIC, body=one.body, properties=properties.encode_message(one))


def broker(where: str, in_flight: str) -> float:
    """Return the durable sends per second of `in_flight` concurrent callers."""

    async def run() -> float:
        async with open_live_broker(Path(where)) as live:
            await send_all(live, messages("W", WARM_UP_SENDS), 16)
            wanted = list(messages("M", SENDS[int(in_flight)]))
            began = time.perf_counter()
            await send_all(live, iter(wanted), int(in_flight))
            return len(wanted) / (time.perf_counter() - began)

    return asyncio.run(run())


async def send_all(live: LiveBroker, wanted: Iterator[Message], in_flight: int) -> None:
    """Send everything with `in_flight` concurrent callers."""

    async def caller() -> None:
        for one in wanted:
            await live.send(one)

    await asyncio.gather(*(caller() for _ in range(in_flight)))


def messages(prefix: str, count: int) -> Iterator[Message]:
    """Return `count` messages with different ids."""
    return (message(prefix, number) for number in range(count))


def message(prefix: str, number: int) -> Message:
    """Return a message of 256 bytes with a key and an id of a client's length."""
    return Message(
        topic=TOPIC, body=BODY, message_id=f"{prefix}{number:033d}", keys=(f"order-{prefix}{number}",)
    )


def stop(where: str) -> None:
    """Open and stop a broker cleanly."""

    async def run() -> None:
        async with open_live_broker(Path(where)):
            pass

    asyncio.run(run())


def kill(where: str) -> None:
    """Append almost as much log as may follow a snapshot, then end the process with SIGKILL."""

    async def run() -> None:
        async with open_live_broker(Path(where)) as live:
            from_offset = live.core.durable_offset
            while live.core.durable_offset < from_offset + UNSAVED_BYTES:
                await send_all(live, messages(f"K{live.core.durable_offset}-", 2_000), 128)
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(run())


def opened(where: str) -> dict[str, float]:
    """Open a store; return the seconds, and the memory afterwards."""
    began = time.perf_counter()
    core = open_core(where)
    seconds = time.perf_counter() - began
    assert not core.rebuilt_files
    return {
        "seconds": round(seconds, 2),
        "rss_mib": memory_mib("VmRSS"),
        "peak_rss_mib": memory_mib("VmHWM"),
    }


def memory_mib(name: str) -> int:
    """Return a memory figure of this process from /proc, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) // 1024


def read(where: str, how: str) -> float:
    """Return random reads per second, each of one message."""
    core, dice = open_core(where), random.Random(1)
    look = {"queue offset": by_queue_offset, "key": by_key}[how]
    count = sum(core.finding.queue_range(TOPIC, queue_id)[1] for queue_id in range(store_builder.QUEUE_COUNT))
    wanted = [dice.randrange(count) for _ in range(READS)]
    began = time.perf_counter()
    for number in wanted:
        is_found = look(core, number)
        assert is_found
    return round(READS / (time.perf_counter() - began))


def by_queue_offset(core: Broker, number: int) -> bool:
    """Read the message of that number by its queue offset."""
    queue_id, queue_offset = store_builder.place_of(number)
    return len(core.finding.read(TOPIC, queue_id, queue_offset, 1)) == 1


def by_key(core: Broker, number: int) -> bool:
    """Read the message of that number by its key."""
    return len(core.finding.find(TOPIC, store_builder.key_of(number), 1).messages) == 1


def open_core(where: str) -> Broker:
    """Open a store without a loop."""
    return Broker.open(RealDisk(Path(where)), BrokerSettings(), now_ms())


def now_ms() -> int:
    """Return wall time in milliseconds."""
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def open_live_broker(where: Path) -> AsyncIterator[LiveBroker]:
    """Open a live broker as in `tidewheel serve`; close it at the end of the block."""
    where.mkdir(parents=True, exist_ok=True)
    disk = RealDisk(where)
    with ThreadPoolExecutor(limits.FLUSHES_IN_FLIGHT_MAX + 1) as writer:
        call_later = asyncio.get_running_loop().call_later
        live = LiveBroker(disk, BrokerSettings(), now_ms, call_later, writer)
        yield live
        await live.close()
    disk.close()


PARTS: dict[str, Callable[..., Any]] = {
    "baseline": baseline,
    "log": commit_log,
    "broker": broker,
    "stop": stop,
    "kill": kill,
    "open": opened,
    "read": read,
}

if __name__ == "__main__":
    main()
