"""Who is calling, as far as a handler may know: what the metadata say, and nothing of the transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Caller:
    """One call's sender. `seconds_left` is what remains of the call's deadline; None when it has none.

    `authorization` and `date` are what it signed, as it wrote it; `user` is who has been found to be behind
    it, empty while nobody asks (`services.rpc.guard`). `is_encrypted` is known of streams both ways only.
    `came_ms`: when the call came, where a node of a cluster says it again later; None: now. `connection` is
    told apart from all others; 0 where it is not known. `host` and `connection` of a call that a node of a
    cluster forwards are those at that node.
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
    """Where a call came from that a node of a cluster forwards: the client's address, and its connection."""

    host: str
    connection: str


Asked = tuple[Any, Caller]
"""A request, and who asks."""
