"""`redis`: pending timers in the broker's core and in a Redis sorted set and hash.

Both sides set timers with unique keys and 256-byte bodies, uniform over 30 days, in batches of the same size
with one batch outstanding: the next is sent when the last is durable (Redis: when its pipeline is answered).
A timer in Redis is `ZADD timers due key` and `HSET bodies key body`; its client is a separate process, as in
production. `ours` is the core with its flushes, in one process, without a network.

Redis's answer is durable only with `appendfsync always`; with `everysec` a power cut loses up to a second.
Memory is the difference between the process with the pending timers and without any: for Redis
`used_memory`, for `ours` the anonymous resident memory right after the sets, and after a restart.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisGone

from parts.shell import BATCH, BODY, DAY_MS, Shell, memory_mib, message, real_ms
from services.shop.carts import redis_server

SPAN_MS = 30 * DAY_MS
MIB = 1024 * 1024
RESOLUTION_MIB = 1.0
SET, BODIES = "timers", "bodies"


def due_times(count: int) -> list[int]:
    """Return due times uniform over 30 days, beginning an hour from now."""
    dice, from_ms = random.Random(1), real_ms() + 3_600_000
    return [from_ms + dice.randrange(SPAN_MS) for _ in range(count)]


def ours(where: str, count: str) -> dict[str, Any]:
    """Set timers in the core, in durable batches with one outstanding; return rate and memory."""
    shell, due = Shell(Path(where)), due_times(int(count))
    shell.settle()
    before = memory_mib("RssAnon")
    began = time.perf_counter()
    for first in range(0, len(due), BATCH):
        batch = [message(first + place, due_ms) for place, due_ms in enumerate(due[first : first + BATCH])]
        shell.core.sending.send_many(batch, shell.clock())
        shell.turn()
        shell.durable()
    seconds = time.perf_counter() - began
    shell.settle()
    held = max(memory_mib("RssAnon") - before, RESOLUTION_MIB)
    shell.checkpoint()
    shell.close()
    return {
        "durable_sets_per_second": round(int(count) / seconds),
        "bytes_per_pending_after_set": round(held * MIB / int(count), 1),
    }


def theirs(where: str, count: str, appendfsync: str) -> dict[str, Any]:
    """Set timers in Redis, in pipelines with one outstanding; return rate and memory."""
    process, url = redis_server.start(made(Path(where)))
    try:
        redis = Redis.from_url(url)
        redis.config_set("appendfsync", appendfsync)
        redis.config_set("auto-aof-rewrite-percentage", 0)
        before = redis.info("memory")["used_memory"]
        seconds = set_in_redis(redis, due_times(int(count)))
        found = redis.info("memory")
        assert redis.zcard(SET) == int(count)
    finally:
        with suppress(RedisGone):
            Redis.from_url(url).shutdown(nosave=True)
        redis_server.stop(process)
    return {
        "appendfsync": appendfsync,
        "sets_per_second": round(int(count) / seconds),
        "bytes_per_pending": round((found["used_memory"] - before) / int(count), 1),
        "rss_mib": round(found["used_memory_rss"] / MIB, 1),
    }


def set_in_redis(redis: Redis, due: list[int]) -> float:
    """Set timers in Redis; return the seconds."""
    began = time.perf_counter()
    for first in range(0, len(due), BATCH):
        pipeline = redis.pipeline(transaction=False)
        for place, due_ms in enumerate(due[first : first + BATCH]):
            key = f"order-{first + place}"
            pipeline.zadd(SET, {key: due_ms})
            pipeline.hset(BODIES, key, BODY)
        pipeline.execute()
    return time.perf_counter() - began


def made(folder: Path) -> Path:
    """Create a folder; return it."""
    folder.mkdir(parents=True)
    return folder


def compared(
    ours: dict[str, Any], pending: dict[str, Any], empty: dict[str, Any], redis: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the ratios of memory and rates; differences below `RESOLUTION_MIB` count as that."""
    per_pending = (
        max(pending["rss_anon_mib"] - empty["rss_anon_mib"], RESOLUTION_MIB) * MIB / pending["pending"]
    )
    always = next(one for one in redis if one["appendfsync"] == "always")
    return {
        "our_bytes_per_pending_after_restart": round(per_pending, 1),
        "redis_bytes_per_pending": always["bytes_per_pending"],
        "redis_memory_over_ours_after_set": round(
            always["bytes_per_pending"] / ours["bytes_per_pending_after_set"], 1
        ),
        "redis_memory_over_ours_after_restart": round(always["bytes_per_pending"] / per_pending, 1),
        "our_sets_over_redis_fsync_always": round(
            ours["durable_sets_per_second"] / always["sets_per_second"], 2
        ),
    }
