"""A pool of gRPC channels to other nodes.

A connection supports up to `limits.CONNECTION_STREAMS_MAX` concurrent calls. gRPC silently queues further
calls. A send that is queued after long polls and Telemetry streams could wait indefinitely. The pool
therefore opens another channel when every channel to a node has CALLS_MAX open calls.
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
"""Idle time in milliseconds before a keepalive ping, slightly above the minimum that a broker accepts."""
SILENT_MS: Final = 3_000
"""Maximum time in milliseconds to wait for a ping reply or a TCP acknowledgement."""
OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),  # nodes connect directly, even if the environment specifies a proxy
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.keepalive_time_ms", ASK_MS),
    ("grpc.keepalive_timeout_ms", SILENT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise, all channels to an address would share one connection
]


Key = tuple[str, str, Identity]
"""The target of a channel: the address and the certificate of a node, and this node's identity."""


@dataclass
class PooledChannel:
    """A channel in the pool, with the number of open calls."""

    channel: grpc.aio.Channel
    calls: int = 0


class ChannelPool:
    """The channels to the most recently called node, and all other channels with open calls.

    The pool closes idle channels to former leaders and idle channels with outdated certificates. Otherwise,
    gRPC would repeatedly try to reconnect them.
    """

    def __init__(self) -> None:
        self._channels: dict[Key, list[PooledChannel]] = {}
        self._called: Key | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def acquire(self, address: str, certificate: str, own: Identity) -> Iterator[grpc.aio.Channel]:
        """Yield a channel for a single call within the block."""
        key = address, certificate, own
        if key != self._called:
            self._close_other_idle_channels(key)
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
                self._close_other_idle_channels(self._called)

    def close_idle(self) -> None:
        """Close all channels without open calls, because a leader makes no calls to other nodes."""
        self._close_other_idle_channels(None)

    def _close_other_idle_channels(self, key: Key | None) -> None:
        """Close the idle channels to all targets other than `key`."""
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
