"""Cost of the audit. Prints JSON.

    .venv/bin/python benchmarks/audit.py decode [--records 10000000] [--rounds 2] [--folder DIR] [--no-spark]
    .venv/bin/python benchmarks/audit.py truth [--orders 1000000] [--plants 20] [--seed 1] [--folder DIR]
    .venv/bin/python benchmarks/audit.py reconcile [--orders 1000000] [--shop DIR] [--heaps 2g 4g 8g]
        [--parts log staged comparison] [--folder DIR]

* decode: a log of `--records` records of about 450 bytes (`parts/audit/store.py`), read from the page cache
  as far as memory allows. `plain` is one process without Spark; `spark` is Spark on two cores writing to
  "noop". Column sets: `full` is the default of a load without named columns (22, with bodies and users'
  properties); `every` is all 41; `fixed` is seven numbers, topic, body and three properties, the columns
  measured with an earlier reader; `keys` is physical_offset, topic, queue_offset, store_ms, keys. Each runs
  with verify=none (lengths only) and verify=record (the CRC of every byte). `windows` reads a topic with a
  tenth of the records, compared with a filtered scan of the whole log (index=never), and a window of a
  hundredth of the time, compared with an unfiltered scan.
* truth: `--plants` findings of every case among `--orders` orders: precision and recall
  (`parts/audit/truth.py`); exits with 1 unless all are 1.
* reconcile: a whole audit of `--orders` orders, and its comparison against datacompy's
  (`parts/audit/reconcile.py`); `--shop` takes a shop built by `audit_shop.py`.

Rates are millions of records per second of the whole log, by wall time and, for plain Python, by the
processor time of the single process, which other work on the machine disturbs less. `crc_us` is the time of
one CRC of 450 bytes during the run, a measure of the machine's speed. Each figure is the best of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from parts.audit import reconcile, truth
from parts.audit.store import FIRST_MS, RECORDS_PER_SECOND, build

from spark_jobs.log.scan.decode import DEFAULT, SCHEMA
from spark_jobs.source import COLUMNS as EVERY_COLUMN
from spark_jobs.source import FORMAT, LogReader

KEYS: Final = ("physical_offset", "topic", "queue_offset", "store_ms", "keys")
FIXED: Final = (
    "physical_offset", "queue_id", "queue_offset", "sys_flag", "born_ms", "store_ms", "half_offset", "topic",
    "message_id", "tag", "keys", "body",
)  # fmt: skip
COLUMNS: Final = {"full": DEFAULT, "every": tuple(SCHEMA.names), "fixed": FIXED, "keys": KEYS}
CHECKS: Final = ("none", "record")
TOPIC: Final = "carts"
RECORD_BYTES: Final = 480
SPARE_BYTES: Final = 2 << 30


def main() -> None:
    """Run the chosen command, or the single part named on the command line."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = arguments.add_subparsers(dest="command", required=True)
    decode = commands.add_parser("decode")
    decode.add_argument("--records", type=int, default=10_000_000)
    decode.add_argument("--rounds", type=int, default=2)
    decode.add_argument("--folder", type=_folder, default=tempfile.gettempdir())
    decode.add_argument("--no-spark", action="store_true")
    _add_audits(commands)
    part = commands.add_parser("part")
    part.add_argument("name", choices=sorted(PARTS))
    part.add_argument("store", type=Path)
    part.add_argument("records", type=int)
    part.add_argument("rounds", type=int)
    given = arguments.parse_args()
    if given.command == "part":
        print(json.dumps(PARTS[given.name](given.store, given.records, given.rounds)))
    elif given.command == "decode":
        print(json.dumps(measure_decode(given), indent=1))
    elif given.command == "reconcile":
        figures = reconcile.measure(given.folder, given.orders, given.shop, given.heaps, given.parts)
        print(json.dumps(figures, indent=1))
    else:
        sys.exit(tell_truth(given))


def _folder(path: str) -> Path:
    """Return the working folder; create it if it does not exist."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _add_audits(commands: Any) -> None:
    """Add the commands that audit a generated shop."""
    finding, costing = commands.add_parser("truth"), commands.add_parser("reconcile")
    for one in (finding, costing):
        one.add_argument("--orders", type=int, default=1_000_000)
        one.add_argument("--folder", type=_folder, default=tempfile.gettempdir())
    finding.add_argument("--plants", type=int, default=20)
    finding.add_argument("--seed", type=int, default=1)
    costing.add_argument("--shop", type=Path)
    costing.add_argument("--heaps", nargs="*", default=["2g", "4g", "8g"])
    costing.add_argument("--parts", nargs="*", default=["log", "staged", "comparison"])


def tell_truth(given: argparse.Namespace) -> int:
    """Print precision and recall; return 0 if both are 1 for every case."""
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-audit-", dir=given.folder) as folder:
        figures = truth.truth(Path(folder), given.orders, given.plants, given.seed)
    print(json.dumps(figures, indent=1))
    return 0 if figures["perfect"] else 1


def measure_decode(given: argparse.Namespace) -> dict[str, Any]:
    """Build a log, and read it with every reader."""
    check_room(given.folder, given.records)
    folder = Path(tempfile.mkdtemp(prefix="tidewheel-bench-audit-", dir=given.folder))
    try:
        started = time.monotonic()
        log_bytes = build(folder / "store", given.records)
        figures: dict[str, Any] = {
            "records": given.records,
            "record_bytes": round(log_bytes / given.records),
            "built_s": round(time.monotonic() - started, 1),
        }
        for name in ("plain", "windows") if given.no_spark else PARTS:
            figures[name] = in_own_process(name, folder / "store", given)
        return figures
    finally:
        shutil.rmtree(folder)


def check_room(folder: Path, records: int) -> None:
    """Exit with an error if the disk has no room for the records."""
    needed, free = records * RECORD_BYTES + SPARE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        sys.exit(
            f"{folder} has {free >> 30} GiB free; {records:,} records need {(needed >> 30) + 1} GiB. "
            "Give another --folder, or fewer --records."
        )


def in_own_process(name: str, store: Path, given: argparse.Namespace) -> Any:
    """Run one part in a new interpreter."""
    command = [sys.executable, __file__, "part", name, str(store), str(given.records), str(given.rounds)]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths})
    return json.loads(done.stdout.splitlines()[-1])


def plain(store: Path, records: int, rounds: int) -> dict[str, Any]:
    """Measure the rates of one process without Spark."""
    figures: dict[str, Any] = {"crc_us": crc_us()}
    read(store, KEYS, to="1000000")
    for name, columns in COLUMNS.items():
        for check in CHECKS:
            options = {"verify": check, "bodies": "" if name == "keys" else "*"}
            wall_s, cpu_s = best(rounds, partial(read, store, columns, **options))
            figures[f"{name} {check}"] = rates(records, wall_s, cpu_s)
    figures["crc_us after"] = crc_us()
    return figures


def windows(store: Path, records: int, rounds: int) -> dict[str, Any]:
    """Measure a topic against a filtered scan, and a time window against an unfiltered scan."""
    figures: dict[str, Any] = {}
    middle_ms = FIRST_MS + records * 500 // RECORDS_PER_SECOND
    length_ms = records * 10 // RECORDS_PER_SECOND
    window = {"from": iso(middle_ms), "to": iso(middle_ms + length_ms)}
    counts: dict[str, int] = {}

    def timed(name: str, **options: str) -> float:
        def run() -> None:
            counts[name] = read(store, KEYS, **options)

        return best(rounds, run)[0]

    scan_s = timed("scan")
    filtered_s = timed("topic, scanned", topics=TOPIC, index="never")
    topic_s, window_s = timed("topic", topics=TOPIC), timed("window", **window)
    assert counts["topic"] == counts["topic, scanned"] > 0
    figures["scan_s"], figures["topic_scanned_s"] = round(scan_s, 2), round(filtered_s, 2)
    figures["topic_s"], figures["window_s"] = round(topic_s, 2), round(window_s, 2)
    figures["topic_rows"], figures["window_rows"] = counts["topic"], counts["window"]
    figures["topic_times_faster"] = round(filtered_s / topic_s, 1)
    figures["window_times_faster"] = round(scan_s / window_s, 1)
    return figures


def spark(store: Path, records: int, rounds: int) -> dict[str, Any]:
    """Measure the rates through Spark on two cores."""
    from spark_jobs.session import spark_session

    figures: dict[str, Any] = {"crc_us": crc_us()}
    with (
        tempfile.TemporaryDirectory() as scratch,
        spark_session(Path(scratch), Path(scratch) / "log", quick=False) as session,
    ):

        def write(columns: tuple[str, ...], **options: str) -> None:
            kinds = session.read.format(FORMAT).schema(EVERY_COLUMN).load(str(store)).schema
            reader = session.read.format(FORMAT).schema(_only(kinds, columns)).options(**options)
            reader.load(str(store)).write.format("noop").mode("overwrite").save()

        write(KEYS, to="1000000")
        for name, columns in COLUMNS.items():
            for check in CHECKS:
                options = {"verify": check, "bodies": "" if name == "keys" else "*"}
                wall_s, _ = best(rounds, partial(write, columns, **options))
                figures[f"{name} {check}"] = round(records / wall_s / 1e6, 2)
        scan_s, _ = best(rounds, lambda: write(KEYS, topics=TOPIC, index="never"))
        topic_s, _ = best(rounds, lambda: write(KEYS, topics=TOPIC))
        figures["topic_times_faster"] = round(scan_s / topic_s, 1)
    return figures


def _only(kinds: Any, columns: tuple[str, ...]) -> Any:
    return type(kinds)([kinds[name] for name in columns])


def read(store: Path, columns: tuple[str, ...], **options: str) -> int:
    """Read the log without Spark; return the number of rows."""
    reader = LogReader({"path": str(store), **options}, columns)
    return sum(len(batch) for part in reader.partitions() for batch in reader.read(part))


def best(rounds: int, run: Callable[[], Any]) -> tuple[float, float]:
    """Return (wall seconds, processor seconds), each the least of the rounds."""
    found = []
    for _ in range(rounds):
        wall, cpu = time.monotonic(), time.process_time()
        run()
        found.append((time.monotonic() - wall, time.process_time() - cpu))
    return min(wall for wall, _ in found), min(cpu for _, cpu in found)


def rates(records: int, wall_s: float, cpu_s: float) -> dict[str, float]:
    """Return millions of records per second, by wall and by processor time."""
    return {"wall": round(records / wall_s / 1e6, 2), "cpu": round(records / cpu_s / 1e6, 2)}


def crc_us() -> float:
    """Return the current time of a CRC of 450 bytes, in microseconds."""
    data = memoryview(bytes(450 * 20_000))
    started = time.process_time()
    for start in range(0, len(data), 450):
        zlib.crc32(data[start : start + 450])
    return round((time.process_time() - started) / 20_000 * 1e6, 2)


def iso(ms: int) -> str:
    """Return a time in the format of the source's options (ISO 8601)."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


PARTS: Final = {"plain": plain, "windows": windows, "spark": spark}


if __name__ == "__main__":
    main()
