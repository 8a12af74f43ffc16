"""The channels to other nodes: as many to each as its open calls need.

A connection has room for `limits.CONNECTION_STREAMS_MAX` calls at once, and gRPC lets a call beyond them wait
without a word: behind long polls and Telemetry streams of many clients, which hardly end, a send would wait
for good. So a channel is given `CALLS_MAX` calls at most, then the next one is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import grpc

from commitlog import limits
from services.cluster.channels import channel_to
from services.cluster.peers import Shown

CALLS_MAX: Final = limits.CONNECTION_STREAMS_MAX // 2
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
ASK_MS: Final = limits.PING_INTERVAL_MS_MIN + 2_000
"""How long a leader says nothing before it is asked whether it is there: as often as a broker allows."""
SILENT_MS: Final = 3_000
"""How long a leader may leave a question unanswered, or not have what it was sent."""
OPTIONS: Final = [
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


@dataclass
class Line:
    """A channel and the number of calls that are open on it."""

    channel: grpc.aio.Channel
    calls: int = 0


class Lines:
    """All channels of a node: by address, its certificate and ours.

    A certificate that was renewed gets channels of its own. What goes on through the one before ends there;
    gRPC lets go of its connection when nothing does.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str, Shown], list[Line]] = {}

    @contextmanager
    def taken(self, address: str, certificate: str, own: Shown) -> Iterator[grpc.aio.Channel]:
        """Give a channel that has room for a call, while the block lasts."""
        lines = self._lines.setdefault((address, certificate, own), [])
        line = next((one for one in lines if one.calls < CALLS_MAX), None)
        if line is None:
            lines.append(line := Line(channel_to(address, certificate, own, OPTIONS)))
        line.calls += 1
        try:
            yield line.channel
        finally:
            line.calls -= 1

    async def close(self) -> None:
        """Close all channels."""
        for line in [line for lines in self._lines.values() for line in lines]:
            await line.channel.close(None)
        self._lines.clear()
