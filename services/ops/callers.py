"""Callers over HTTP: whose token a request bears, and whether its user may do what it asks.

    gate     the token is known --------------------> `Caller` in the request's scope; 401
    route    what it asks (`services.ops.needs`) ---> `ask`: its user may; 403
    poll     while it waits (`polls.HangUp`) -------> `watch`: the token was revoked, expired, the right
                                                      taken away; 401 or 403 at once

Without a `Caller` in its scope a request is the administrator's: it bears the token of `--http-token`, or the
broker asks nobody. Cost: a hash and a comparison a request, a look-up for each of up to NEEDS_MAX needs. A
request through a node that follows is judged by the leader, by the token that it bears: a node adds no right
to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from starlette.requests import Request

from commitlog import limits
from services.auth.errors import Forbidden
from services.auth.refusals import Refusals
from services.auth.rights import Kind, Need, Verb, lacking
from services.auth.tokens import Token
from services.live.access import LiveAccess
from services.ops.errors import RequestTooLarge
from tidewheel.errors import AccessRefused

TOKEN, NO_RIGHT = "http token", "no right"
"""Reasons of refusals."""
_SCOPE: Final = "tidewheel.caller"
_LOOK_SECONDS_MAX: Final = 3_600.0
NEEDS_MAX: Final = 2 * limits.TIMER_BATCH_MAX + 1
"""Of a request: each message of a batch has a topic and may name a timer's; a half is to be ended, too."""


class Authority(NamedTuple):
    """Where tokens and rights are looked up; a node that follows has them in its copy."""

    holder: Callable[[str], Token]
    """Return the token of a text; raise `Unauthorized`."""
    check_stands: Callable[[Token], None]
    """Raise `Unauthorized` for a token that was known, and is void."""
    seconds_left: Callable[[Token], float | None]
    allows: Callable[[str, Need], bool]
    allows_some: Callable[[str, Verb, Kind], bool]
    watching: set[Callable[[], None]]
    """Called after each change."""


def authority_of(access: LiveAccess) -> Authority:
    """Return the authority of a broker that leads, or is alone."""
    return Authority(
        access.holder,
        access.check_stands,
        access.seconds_left,
        access.allows,
        access.allows_some,
        access.watching,
    )


class Caller:
    """A user at the other end of a request; `asked` is the request for lists of refusals."""

    def __init__(self, authority: Authority, token: Token, refusals: Refusals, host: str, asked: str) -> None:
        self._authority, self._token, self._refusals = authority, token, refusals
        self._host, self._asked = host, asked
        self._needs: tuple[Need, ...] = ()

    @property
    def user(self) -> str:
        """The user's name."""
        return self._token.user

    def may_somewhere(self, verb: Verb, kind: Kind) -> bool:
        """Return whether the user has a verb on any topic, or group, at all."""
        return self._authority.allows_some(self.user, verb, kind)

    def ask(self, needs: Iterable[Need]) -> None:
        """Raise `Forbidden` unless the user may do what the request asks; keep it for `watch`.

        They are judged in one turn of the loop: raise `RequestTooLarge` for more than any request may have.
        """
        found = dict[Need, None]()
        for need in needs:
            found[need] = None
            if len(found) > NEEDS_MAX:
                raise RequestTooLarge(f"It names more than {NEEDS_MAX} topics. Send less at once.")
        self._needs = tuple(found)
        self.check()

    def watch(self, ended: Callable[[AccessRefused], None]) -> Callable[[], None]:
        """Call `ended` as soon as the request may go on no more; return what ends the watch."""

        def look() -> None:
            try:
                self.check()
            except AccessRefused as error:
                unwatch()
                ended(error)

        def unwatch() -> None:
            self._authority.watching.discard(look)
            if timer is not None:
                timer.cancel()

        self._authority.watching.add(look)
        left = self._authority.seconds_left(self._token)
        loop, seconds = asyncio.get_running_loop(), _LOOK_SECONDS_MAX if left is None else left
        timer = loop.call_later(seconds, look) if seconds < _LOOK_SECONDS_MAX else None
        return unwatch

    def check(self) -> None:
        """Raise `Unauthorized` if the token is void by now, `Forbidden` for rights that are missing."""
        try:
            self._authority.check_stands(self._token)
        except AccessRefused:
            self._refusals.add(TOKEN, self._host, self._asked, self.user)
            raise
        allows = self._authority.allows
        if missing := [one for one in self._needs if not allows(self.user, one)]:
            self._refusals.add(NO_RIGHT, self._host, f"{self._asked}: {missing[0]}", self.user)
            raise Forbidden(lacking(self.user, missing))


def let_in(request: Request, caller: Caller) -> None:
    """Note whose request it is."""
    request.scope[_SCOPE] = caller


def caller_of(request: Request) -> Caller | None:
    """Return the user whose request it is; None: the administrator's."""
    found: Caller | None = request.scope.get(_SCOPE)
    return found
