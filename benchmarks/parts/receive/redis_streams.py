"""The same with Redis streams: a group reads 32 entries and acknowledges them, synced with every command.

A single consumer waits for each answer. Several send their commands in one pipeline, all reads, then all
acknowledgements, which corresponds to one flush of the broker. Entries have 256 bytes; memory is that of the
stream before any acknowledgement.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisGone

from services.shop.carts import redis_server

STREAM, GROUP, BATCH = "orders", "stopwatch", 32
ADDED_AT_ONCE = 1_000


def redis(where: str, count: str, consumers: str, seconds: str) -> dict[str, Any]:
    """Add `count` entries, then let `consumers` read and acknowledge for `seconds`; return the figures."""
    folder = Path(where)
    folder.mkdir(parents=True)
    process, url = redis_server.start(folder)
    try:
        client = Redis.from_url(url)
        client.config_set("auto-aof-rewrite-percentage", 0)
        client.config_set("appendfsync", "no")
        before = client.info("memory")["used_memory"]
        add(client, int(count))
        held = client.info("memory")["used_memory"] - before
        client.config_set("appendfsync", "always")
        figures = read(client, int(consumers), float(seconds))
    finally:
        with suppress(RedisGone):
            Redis.from_url(url).shutdown(nosave=True)
        redis_server.stop(process)
    return figures | {"stored": int(count), "memory_bytes_per_entry": round(held / int(count), 1)}


def add(client: Redis, count: int) -> None:
    """Fill the stream, and create the group."""
    for _ in range(0, count, ADDED_AT_ONCE):
        pipeline = client.pipeline(transaction=False)
        for _ in range(ADDED_AT_ONCE):
            pipeline.xadd(STREAM, {"body": bytes(256)})
        pipeline.execute()
    client.xgroup_create(STREAM, GROUP, id="0")


def read(client: Redis, consumers: int, seconds: float) -> dict[str, Any]:
    """Read and acknowledge until the stream is empty or the time is over; return the rate."""
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        pipeline = client.pipeline(transaction=False)
        for number in range(consumers):
            pipeline.xreadgroup(GROUP, f"consumer-{number}", {STREAM: ">"}, count=BATCH)
        batches = [[entry_id for entry_id, _ in found[0][1]] for found in pipeline.execute() if found]
        if not batches:
            break
        for batch in batches:
            pipeline.xack(STREAM, GROUP, *batch)
        pipeline.execute()
        done += sum(map(len, batches))
    rate = round(done / (time.perf_counter() - began))
    return {"received_and_acknowledged_per_second": rate, "appendfsync": "always", "count": done}
