"""Transactions over gRPC and their alternatives, by a client with low overhead.

    half_commit        a half, then its commit
    half_rows_commit   a half, one database transaction (the order's row and its barrier row), the commit
    two_sends          two plain messages without atomicity
    outbox             one database transaction (the order's row and its outbox row); a relay sends and marks

The database is SQLite with WAL and `synchronous=FULL`, so that its commits are as durable as the broker's;
SQLite serialises commits. The relay reads the outbox, sends up to 64 messages at once and marks them
together; its time counts until all are marked.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from parts.grpc_client import call
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.serving.service import NAME

TOPIC, PLAIN = "orders", "orders-plain"
RELAY_BATCH = 64
PATIENCE_SECONDS = 60.0

TABLES = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE orders (id INTEGER PRIMARY KEY, body BLOB);
    CREATE TABLE barrier (message_id TEXT PRIMARY KEY, made_ms INTEGER);
    CREATE TABLE outbox (id INTEGER PRIMARY KEY, body BLOB, sent_ms INTEGER);
    CREATE INDEX unsent ON outbox (id) WHERE sent_ms IS NULL;
"""
One = Callable[[int], Awaitable[None]]


def rate(how: str, endpoint: str, folder: str, producers: str, seconds: str) -> dict[str, Any]:
    """Let `producers` work in one of the ways above for `seconds`; return the rate."""
    return asyncio.run(_rate(how, endpoint, Path(folder), int(producers), float(seconds)))


async def _rate(how: str, endpoint: str, folder: Path, producers: int, seconds: float) -> dict[str, Any]:
    database = sqlite3.connect(folder / f"{how}-{producers}.sqlite", isolation_level=None)
    database.executescript(TABLES)
    async with grpc.aio.insecure_channel(endpoint) as channel:
        client = Client(channel, database, prefix=f"{how}{producers}")
        one: One = getattr(client, how)
        await one(-1)
        began = time.monotonic()
        until = began + seconds
        relay = asyncio.create_task(client.relay(until)) if how == "outbox" else None
        done = await asyncio.gather(*(_repeat(one, number, producers, until) for number in range(producers)))
        if relay is not None:
            await relay
        took = time.monotonic() - began
    return {"per_second": round(sum(done) / took, 1), "producers": producers}


async def _repeat(one: One, first: int, step: int, until: float) -> int:
    count = 0
    while time.monotonic() < until:
        await one(first + count * step)
        count += 1
    return count


class Client:
    """One connection to the broker and one to the database."""

    def __init__(self, channel: grpc.aio.Channel, database: sqlite3.Connection, prefix: str) -> None:
        self._send, self._end = call(channel, "SendMessage"), call(channel, "EndTransaction")
        self._database, self._prefix = database, prefix

    async def half_commit(self, number: int) -> None:
        """Send a half and commit it."""
        await self.commit(await self.sent(TOPIC, number, wire.MessageType.TRANSACTION))

    async def half_rows_commit(self, number: int) -> None:
        """Send a half, write the rows with their barrier, commit the half."""
        half = await self.sent(TOPIC, number, wire.MessageType.TRANSACTION)
        self._rows("INSERT INTO barrier VALUES (?, 0)", half.message_id)
        await self.commit(half)

    async def two_sends(self, number: int) -> None:
        """Send two plain messages."""
        await self.sent(PLAIN, 2 * number, wire.MessageType.NORMAL)
        await self.sent(PLAIN, 2 * number + 1, wire.MessageType.NORMAL)

    async def outbox(self, number: int) -> None:
        """Write the row with its outbox row; the relay sends the message."""
        self._rows("INSERT INTO outbox (body) VALUES (?)", bytes(256))
        await asyncio.sleep(0)

    async def relay(self, until: float) -> None:
        """Send the messages of the outbox, and mark them, until the time is over and none is left."""
        while True:
            found = self._database.execute(
                "SELECT id FROM outbox WHERE sent_ms IS NULL ORDER BY id LIMIT ?", (RELAY_BATCH,)
            ).fetchall()
            if not found and time.monotonic() > until:
                return
            await asyncio.gather(*(self.sent(PLAIN, row[0], wire.MessageType.NORMAL) for row in found))
            if found:
                self._mark(found)
            await asyncio.sleep(0 if found else 0.001)

    def _mark(self, found: list[Any]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("UPDATE outbox SET sent_ms = 1 WHERE id = ?", found)
        self._database.execute("COMMIT")

    def _rows(self, statement: str, value: object) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.execute(statement, (value,))
        self._database.execute("INSERT INTO orders (body) VALUES (?)", (bytes(256),))
        self._database.execute("COMMIT")

    async def sent(self, topic: str, number: int, kind: Any) -> Any:
        system = wire.SystemProperties(message_id=f"{self._prefix}-{number:024d}", message_type=kind)
        system.born_timestamp.GetCurrentTime()
        message = wire.Message(topic=wire.Resource(name=topic), system_properties=system, body=bytes(256))
        answer = await self._send(service.SendMessageRequest(messages=[message]))
        assert answer.status.code == wire.Code.OK, answer.status
        return answer.entries[0]

    async def commit(self, half: Any) -> None:
        answer = await self._end(
            service.EndTransactionRequest(
                topic=wire.Resource(name=TOPIC),
                message_id=half.message_id,
                transaction_id=half.transaction_id,
                resolution=wire.TransactionResolution.COMMIT,
            )
        )
        assert answer.status.code == wire.Code.OK, answer.status


def asked(endpoint: str, count: str) -> dict[str, Any]:
    """Leave `count` halves open, and answer the broker's check-backs with commits; return the rate."""
    return asyncio.run(_asked(endpoint, int(count)))


async def _asked(endpoint: str, count: int) -> dict[str, Any]:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        client = Client(channel, sqlite3.connect(":memory:"), "asked")
        metadata = (("x-mq-client-id", "bench-SendMessage"),)
        stream = channel.stream_stream(
            f"/{NAME}/Telemetry",
            service.TelemetryCommand.SerializeToString,
            service.TelemetryCommand.FromString,
        )(None, metadata=metadata)
        settings = wire.Settings(client_type=wire.ClientType.PRODUCER)
        settings.publishing.topics.append(wire.Resource(name=TOPIC))
        await stream.write(service.TelemetryCommand(settings=settings))
        sends = range(0, count, RELAY_BATCH)
        for first in sends:
            batch = range(first, min(first + RELAY_BATCH, count))
            await asyncio.gather(
                *(client.sent(TOPIC, number, wire.MessageType.TRANSACTION) for number in batch)
            )
        return await _answer(client, stream, count)


async def _answer(client: Client, stream: Any, count: int) -> dict[str, Any]:
    """Answer until all halves have ended, 64 at a time; time is measured from the first check-back."""
    turns = asyncio.Semaphore(RELAY_BATCH)

    async def answer(half: Any) -> None:
        async with turns:
            await client.commit(half)

    seen: set[str] = set()
    ends: list[asyncio.Task[None]] = []
    began = 0.0
    while len(seen) < count:
        command = await asyncio.wait_for(stream.read(), PATIENCE_SECONDS)
        if command.WhichOneof("command") != "recover_orphaned_transaction_command":
            continue
        began = began or time.monotonic()
        question = command.recover_orphaned_transaction_command
        if question.transaction_id not in seen:
            seen.add(question.transaction_id)
            half = service.SendResultEntry(
                message_id=question.message.system_properties.message_id,
                transaction_id=question.transaction_id,
            )
            ends.append(asyncio.create_task(answer(half)))
    await asyncio.gather(*ends)
    return {"check_backs_answered_per_second": round(count / (time.monotonic() - began), 1)}
