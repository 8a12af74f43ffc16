"""Measure the cost of a send with few and many recent ids, after a kill and after a takeover. Print JSON.

    .venv/bin/python benchmarks/repeats.py [--old COMMIT] [--rounds 7] [--ids 500000] [--interval 0.2]

All rows send new messages, 1 and 16 per call of the core (`MessageSender.send_many`, flush and publishing
included; no transport, a disk in memory). Rows:

    fresh        an empty store
    many         `--ids` messages were sent within the last 30 s of the broker's clock
    after_kill   that store, recovered after a kill of its process, in the first 30 s
    after_lead   a core that followed the one with many ids, and leads

Each round measures the four in turn with a pause between; figures are the minimum over all rounds, processor
microseconds per message, and their ratio to `fresh`. `table_bytes` is the memory of the table of ids after
`--ids`. With `--old` the same runs with the sources of an older commit in a separate process.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOW_MS = 1_763_700_000_000
BODY = b"x" * 256
GATHERED = 64
"""Messages of one flush."""


def main() -> None:
    """Measure the current sources, and those of the older commit if one is given."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--old", help="a commit to compare with")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--ids", type=int, default=500_000)
    arguments.add_argument("--interval", type=float, default=0.2, help="seconds between two measurements")
    arguments.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.here:
        print(json.dumps(measured(chosen.rounds, chosen.ids, chosen.interval)))
        return
    told: dict[str, Any] = {"new": of_tree(ROOT, chosen)}
    if chosen.old:
        with tempfile.TemporaryDirectory(prefix="tidewheel-bench-") as folder:
            packed = subprocess.run(["git", "archive", chosen.old], cwd=ROOT, check=True, capture_output=True)
            subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
            told["old"] = of_tree(Path(folder), chosen)
    told["beside"] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    print(json.dumps(told, indent=2))


def of_tree(tree: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a process with the sources of one tree."""
    command = [sys.executable, __file__, "--here", "--rounds", str(chosen.rounds), "--ids", str(chosen.ids)]
    command += ["--interval", str(chosen.interval)]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    ran = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def measured(rounds: int, ids: int, interval_s: float) -> dict[str, Any]:
    """Return the figures of the sources on the import path."""
    from commitlog.log.recovery import LogScan
    from commitlog.records.message import Message
    from commitlog.records.record import encode
    from services.broker.broker import Broker
    from tests.memory_disk import MemoryDisk

    try:
        from services.broker.spine.settings import BrokerSettings
    except ImportError:  # older commits, which are measured too, have another package layout
        from services.broker.settings import BrokerSettings  # type: ignore[import-not-found, no-redef]

    settings = BrokerSettings(segment_bytes=1 << 28, queue_count=8)
    numbers = count()
    marks = {"shop": "north", "colour": "blue"}

    class Fold:
        """Stub of a fold of a shared log, with which a core follows."""

        def freeze(self) -> None:
            """Do nothing."""

        def thaw(self, frozen: Any) -> None:
            """Do nothing."""

    def messages(amount: int) -> list[Message]:
        return [
            Message(topic="t", body=BODY, message_id=f"{next(numbers):032X}", properties=dict(marks))
            for _ in range(amount)
        ]

    def flush(core: Broker, now_ms: int) -> None:
        while (one := core.take_flush()) is not None:
            one.write()
            core.complete_flush(one, now_ms)

    def send(core: Broker, now_ms: int, sent: list[Message], batch: int) -> float:
        began = time.process_time()
        for at in range(0, len(sent), GATHERED):
            for first in range(at, min(at + GATHERED, len(sent)), batch):
                core.sending.send_many(sent[first : first + batch], now_ms)
            flush(core, now_ms)
        return (time.process_time() - began) / len(sent) * 1e6

    def followed(disk: MemoryDisk, until: int, ahead_ms: int) -> Broker:
        core = Broker.recover(MemoryDisk(), settings, NOW_MS + ahead_ms, shared=Fold())
        extra = (
            (NOW_MS + ahead_ms,) if "now_ms" in inspect.signature(core.append_replicated).parameters else ()
        )
        part: list[bytes] = []
        for one in LogScan(disk, settings.segment_bytes, 0, stop_at=until):
            part.append(encode(one.record))
            if len(part) == GATHERED:
                core.append_replicated(part, one.record.physical_offset + one.record_bytes, *extra)
                part = []
        core.append_replicated(part, until, *extra)
        core.begin(NOW_MS + ahead_ms, leases_until_ms=NOW_MS + ahead_ms + 10_000)
        return core

    def checkpoint(core: Broker, disk: MemoryDisk, now_ms: int) -> None:
        done = core.checkpoint(now_ms)
        done.write(disk)
        core.complete_checkpoint(done)

    disk, now_ms = MemoryDisk(), NOW_MS
    fresh = Broker.open(MemoryDisk(), settings, now_ms)
    many = Broker.open(disk, settings, now_ms)
    for part in range(25):
        now_ms = NOW_MS + part * 1_000
        send(many, now_ms, messages(ids // 25), 16)
        if part % 10 == 9:
            checkpoint(many, disk, now_ms)
    copy = MemoryDisk()
    for path in disk.paths():
        copy.write(path, 0, bytes(disk.view(path)))
        copy.sync(path)
        copy.sync_folder(path.rpartition("/")[0])
    began = time.process_time()
    killed = Broker.open(copy, settings, now_ms)
    start_s = time.process_time() - began
    cores = {
        "fresh": fresh,
        "many": many,
        "after_kill": killed,
        "after_lead": followed(disk, many.durable_offset, now_ms - NOW_MS),
    }
    rows: dict[str, dict[str, float]] = {}
    gc.collect()
    gc.freeze()
    for batch in (1, 16):
        found: dict[str, list[float]] = {name: [] for name in cores}
        for _ in range(rounds):
            for name, core in cores.items():
                sent = messages(2_000)
                time.sleep(interval_s)
                found[name].append(send(core, now_ms, sent, batch))
        least = {name: min(each) for name, each in found.items()}
        rows[f"{batch}_a_call"] = {name: round(each, 2) for name, each in least.items()}
        rows[f"{batch}_a_call_to_fresh"] = {
            name: round(each / least["fresh"], 3) for name, each in least.items()
        }
    return {
        "processor_us": rows,
        "start_after_kill_s": round(start_s, 2),
        "table_bytes": table_bytes(many.sending.deduplicator),
    }


def table_bytes(repeats: Any) -> int:
    """Return the memory of the table of ids in bytes, for current and older versions."""
    if not hasattr(repeats, "ids"):
        return len(repeats._slots)
    return int(repeats.ids._array.nbytes) + 230 * int(repeats.ids.overflow_count)


if __name__ == "__main__":
    main()
