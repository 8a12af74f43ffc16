"""In-memory browser sessions and the one-time links that open them.

A session is identified by 256 random bits in a cookie (HttpOnly, SameSite=Strict). The token for the broker
is never sent to the browser. A link opens one session. It becomes invalid after its first use or after
`LINK_SECONDS`. A session ends `IDLE_SECONDS` after its last use; the refresh of an open page is not a use.
Only digests of names are stored, so the duration of a lookup reveals nothing about valid names. Cost: one
dictionary lookup per request. All sessions end when the console stops.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

LINK_SECONDS: Final = 600
IDLE_SECONDS: Final = 12 * 3600
SESSIONS_MAX: Final = 1_000


@dataclass(slots=True)
class Session:
    """A browser session: its token (empty without authentication), its user (empty without authentication)
    and its next message.
    """

    token: str
    user: str = ""
    note: str = ""
    seen_s: float = 0.0

    def take_note(self) -> str:
        """Return the message of the last action and clear it."""
        note, self.note = self.note, ""
        return note


class Sessions:
    """The open sessions. `elapsed_s` is a monotonic clock."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._sessions: dict[bytes, Session] = {}
        self._links: dict[bytes, tuple[float, str]] = {}

    def new_link(self, token: str = "") -> str:
        """Return the key of a new one-time link for sessions with `token`."""
        key = secrets.token_urlsafe(32)
        self.offer(key, token)
        return key

    def offer(self, key: str, token: str = "") -> None:
        """Accept a key for one use."""
        now_s = self._elapsed_s()
        self._links = {name: link for name, link in self._links.items() if link[0] > now_s}
        self._links[_digest(key)] = (now_s + LINK_SECONDS, token)

    def enter(self, key: str) -> str | None:
        """Return the name of a new session for a link key, or None if the key is unknown, used or expired."""
        until_s, token = self._links.pop(_digest(key), (0.0, ""))
        return self.open(Session(token)) if until_s > self._elapsed_s() else None

    def open(self, session: Session) -> str:
        """Open a session and return its name.

        If there are too many, the least recently used session is closed.
        """
        self._forget_idle()
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[min(self._sessions, key=lambda name: self._sessions[name].seen_s)]
        name = secrets.token_urlsafe(32)
        session.seen_s = self._elapsed_s()
        self._sessions[_digest(name)] = session
        return name

    def find(self, name: str, *, is_use: bool = True) -> Session | None:
        """Return an open session, or None. A use extends the session."""
        self._forget_idle()
        session = self._sessions.get(_digest(name))
        if session is not None and is_use:
            session.seen_s = self._elapsed_s()
        return session

    def close(self, name: str) -> None:
        """Close a session."""
        self._sessions.pop(_digest(name), None)

    def _forget_idle(self) -> None:
        oldest_s = self._elapsed_s() - IDLE_SECONDS
        for name in [name for name, one in self._sessions.items() if one.seen_s < oldest_s]:
            del self._sessions[name]


def _digest(name: str) -> bytes:
    return sha256(name.encode("utf-8", "surrogatepass")).digest()
