"""One side of the stream test: `write STORE ACKED` is a broker that takes messages.

`read STORE FOLDER` is a query that follows it. `drain STORE FOLDER ANSWER` reads what is left, and writes
every id that arrived.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message, MessageType
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings

BATCH_COUNT = 20


def write(store: Path, acked: Path) -> None:
    """Sends batches for ever; notes how many messages were answered."""
    store.mkdir(exist_ok=True)
    disk = RealDisk(store)
    broker = Broker.open(disk, BrokerSettings(segment_bytes=64 * 1024), now_ms())
    if not acked.exists():
        broker.topics.create("t", MessageType.NORMAL, 2, now_ms())
    number = int(acked.read_text()) if acked.exists() else 0
    number += 1_000_000 - number % 1_000_000  # a run never takes a number of the one before
    while True:
        for at in range(number, number + BATCH_COUNT):
            broker.sending.send(Message(topic="t", body=bytes(100), message_id=f"{at:032d}"), now_ms())
        while (flush := broker.take_flush()) is not None:
            flush.write()
            broker.complete_flush(flush, now_ms())
        number += BATCH_COUNT
        with acked.with_name("acked.ids").open("a") as ids:
            ids.write("".join(f"{at:032d}\n" for at in range(number - BATCH_COUNT, number)))
        acked.write_text(str(number))
        time.sleep(0.05)


def read(store: Path, folder: Path, answer: Path | None = None) -> None:
    """Follows the log into a file sink; with `answer`, up to its end."""
    from spark_jobs.session import spark_session

    scratch = folder / f"scratch-{time.monotonic_ns()}"
    scratch.mkdir(parents=True)
    with spark_session(scratch, folder / "spark.log", quick=True, master="local[1]") as spark:
        frame = (
            spark.readStream.format("tidewheel")
            .schema("physical_offset bigint, message_id string, damage string")
            .options(dataset="messages", max_bytes_per_trigger=30_000)
            .load(str(store))
        )
        trigger: dict[str, Any] = {"availableNow": True} if answer else {"processingTime": "200 milliseconds"}
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(**trigger)
            .start(str(folder / "out"))
        )
        query.awaitTermination()
        if answer:
            rows = spark.read.parquet(str(folder / "out")).collect()
            answer.write_text(json.dumps([[row.message_id, row.damage] for row in rows]))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    verb, *paths = sys.argv[1:]
    given = [Path(path) for path in paths]
    write(*given) if verb == "write" else read(*given)
