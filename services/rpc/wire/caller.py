"""The caller of an RPC as seen by handlers, independent of the transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a call.

    `seconds_left` is the remaining time until the call's deadline, or None if it has no deadline.

    `authorization` and `date` are the signature headers. `user` is the authenticated user, or empty without
    access control (`services.rpc.guard`). `is_encrypted` is known only for bidirectional streams. `came_ms`
    is the arrival time of a call that a cluster node forwards later, or None for the current time.
    `connection` is a unique identifier, or 0 if unknown. For a forwarded call, `host` and `connection` are
    those at the forwarding node.
    """

    client_id: str
    language: str = ""
    version: str = ""
    host: str = "127.0.0.1"
    seconds_left: float | None = None
    authorization: str = field(default="", repr=False)
    date: str = ""
    user: str = ""
    namespace: str = ""
    is_encrypted: bool = False
    came_ms: int | None = None
    connection: int | str = 0


class Origin(NamedTuple):
    """The origin of a call that a cluster node forwards: the client's address and its connection."""

    host: str
    connection: str


Asked = tuple[Any, Caller]
"""A request and its caller."""
