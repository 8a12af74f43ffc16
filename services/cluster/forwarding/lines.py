"""The channels to other nodes: as many to each as its open calls need.

A connection has room for `limits.CONNECTION_STREAMS_MAX` calls at once, and gRPC lets a call beyond them wait
without a word: behind long polls and Telemetry streams of many clients, which hardly end, a send would wait
for good. So a channel is given `CALLS_MAX` calls at most, then the next one is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import grpc

from commitlog import limits
from services.cluster.forwarding.channels import channel_to
from services.cluster.peers import Identity

CALLS_MAX: Final = limits.CONNECTION_STREAMS_MAX // 2
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
ASK_MS: Final = limits.PING_INTERVAL_MS_MIN + 2_000
"""How long a leader says nothing before it is asked whether it is there: as often as a broker allows."""
SILENT_MS: Final = 3_000
"""How long a leader may leave a question unanswered, or not have what it was sent."""
OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),  # nodes reach each other: a proxy of the environment is for others
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.keepalive_time_ms", ASK_MS),
    ("grpc.keepalive_timeout_ms", SILENT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to an address share one connection
]


Key = tuple[str, str, Identity]
"""Whom a channel is to: its address, its certificate, and what this node shows."""


@dataclass
class PooledChannel:
    """A channel and the number of calls that are open on it."""

    channel: grpc.aio.Channel
    calls: int = 0


class ChannelPool:
    """The channels of a node: to whom was called last, and others as long as calls are open on them.

    gRPC dials a channel that nobody uses again and again while nobody answers there, or somebody with another
    certificate. So those to whoever led before, and to a certificate that was renewed, are closed.
    """

    def __init__(self) -> None:
        self._channels: dict[Key, list[PooledChannel]] = {}
        self._called: Key | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def acquire(self, address: str, certificate: str, own: Identity) -> Iterator[grpc.aio.Channel]:
        """Give a channel that has room for a call, while the block lasts."""
        key = address, certificate, own
        if key != self._called:
            self._call_only(key)
        lines = self._channels.setdefault(key, [])
        line = next((one for one in lines if one.calls < CALLS_MAX), None)
        if line is None:
            lines.append(line := PooledChannel(channel_to(address, certificate, own, OPTIONS)))
        line.calls += 1
        try:
            yield line.channel
        finally:
            line.calls -= 1
            if key != self._called:
                self._call_only(self._called)

    def close_idle(self) -> None:
        """Close all channels on which no call is open: nobody is to be called for now."""
        self._call_only(None)

    def _call_only(self, key: Key | None) -> None:
        """Close the channels to others on which no call is open."""
        self._called = key
        for other in [one for one in self._channels if one != key]:
            idle = [line for line in self._channels[other] if not line.calls]
            self._channels[other] = [line for line in self._channels[other] if line.calls]
            if not self._channels[other]:
                del self._channels[other]
            for line in idle:
                closing = asyncio.ensure_future(line.channel.close(None))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all channels."""
        await asyncio.gather(*self._closing)
        for line in [line for lines in self._channels.values() for line in lines]:
            await line.channel.close(None)
        self._channels.clear()
