"""Authentication and authorization of HTTP requests by token.

    gate     verifies the token -----------------------> stores a `Caller` in the scope, or returns 401
    route    needs (`services.ops.needs`) -------------> `ask` checks the user's rights, or returns 403
    poll     while it is open (`polls.HangUp`) --------> `watch` ends the poll with 401 or 403 when the token
                                                         is revoked or expires, or a right is removed
    task     until its end (`services.live.bulk.tasks`) ----> `watch` stops the task for the same reasons

A request without a `Caller` comes from the administrator: it contains the token of `--http-token`, or
authentication is off. A follower forwards the token, and the leader authorizes the request. Cost: one hash
and one comparison for each request, and one look-up for each of at most NEEDS_MAX needs.
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
from services.live.bulk.tasks import Watch, ignore_task_end
from services.ops.requests.errors import RequestTooLarge
from tidewheel.errors import AccessRefused

TOKEN, NO_RIGHT = "http token", "no right"
"""Reasons of refusals."""
ADMINISTRATOR: Final = "the administrator"
"""The name of the holder of `--http-token`, which is no name of a user (`services.auth.rights`)."""
_SCOPE: Final = "tidewheel.caller"
_ADMINISTRATOR: Final = "tidewheel.administrator"
_LOOK_SECONDS_MAX: Final = 3_600.0
NEEDS_MAX: Final = 2 * limits.TIMER_BATCH_MAX + 1
"""Per request: two topics (its own, a timer's) for each message of a batch, and one to end a half."""


class Authority(NamedTuple):
    """Look-up of tokens and rights; a follower reads its own copy."""

    holder: Callable[[str], Token]
    """Return the token for a text; raise `Unauthorized`."""
    check_token: Callable[[Token], None]
    """Raise `Unauthorized` for a revoked or expired token."""
    seconds_left: Callable[[Token], float | None]
    allows: Callable[[str, Need], bool]
    allows_some: Callable[[str, Verb, Kind], bool]
    watching: set[Callable[[], None]]
    """Called after each change."""


def authority_of(access: LiveAccess) -> Authority:
    """Return the authority of a leader or single broker."""
    return Authority(
        access.find_token,
        access.check_token,
        access.seconds_left,
        access.allows,
        access.allows_some,
        access.watching,
    )


class Caller:
    """The authenticated user of a request. `asked` describes the request in lists of refusals."""

    def __init__(self, authority: Authority, token: Token, refusals: Refusals, host: str, asked: str) -> None:
        self._authority, self._token, self._refusals = authority, token, refusals
        self._host, self._asked = host, asked
        self._needs: tuple[Need, ...] = ()

    @property
    def user(self) -> str:
        """The name of the user."""
        return self._token.user

    @property
    def token(self) -> Token:
        """The token of the request, with times by the clock of the broker."""
        return self._token

    def may(self, needs: Iterable[Need]) -> bool:
        """Return whether the user has all given rights. A refusal is not recorded."""
        return all(self._authority.allows(self.user, one) for one in needs)

    def may_somewhere(self, verb: Verb, kind: Kind) -> bool:
        """Return whether the user has a verb on at least one topic or group."""
        return self._authority.allows_some(self.user, verb, kind)

    def ask(self, needs: Iterable[Need]) -> None:
        """Raise `Forbidden` if the user lacks a required right. Store the needs for `watch`.

        All needs are checked in one turn of the event loop. Raise `RequestTooLarge` if there are more than
        NEEDS_MAX.
        """
        found = dict[Need, None]()
        for need in needs:
            found[need] = None
            if len(found) > NEEDS_MAX:
                raise RequestTooLarge(f"It names more than {NEEDS_MAX} topics. Send less at once.")
        self._needs = tuple(found)
        self.check()

    def watch(self, ended: Callable[[AccessRefused], None]) -> Callable[[], None]:
        """Call `ended` when the token or a right is lost. Return a function that stops the watch."""

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
        """Raise `Unauthorized` for a revoked or expired token, or `Forbidden` for a missing right."""
        try:
            self._authority.check_token(self._token)
        except AccessRefused:
            self._refusals.add(TOKEN, self._host, self._asked, self.user)
            raise
        allows = self._authority.allows
        if missing := [one for one in self._needs if not allows(self.user, one)]:
            self._refusals.add(NO_RIGHT, self._host, f"{self._asked}: {missing[0]}", self.user)
            raise Forbidden(lacking(self.user, missing))


def let_in(request: Request, caller: Caller) -> None:
    """Store the caller in the request's scope."""
    request.scope[_SCOPE] = caller


def let_in_administrator(request: Request) -> None:
    """Store in the request's scope that it contains the token of `--http-token`."""
    request.scope[_ADMINISTRATOR] = True


def user_of(request: Request) -> str:
    """Return the user of a request, or an empty string if HTTP requires no token."""
    caller = caller_of(request)
    if caller is not None:
        return caller.user
    return ADMINISTRATOR if request.scope.get(_ADMINISTRATOR) else ""


def watch_of(request: Request) -> Watch:
    """Return the function that watches the rights of the caller.

    The rights of the administrator never change.
    """
    caller = caller_of(request)
    return ignore_task_end if caller is None else caller.watch


def caller_of(request: Request) -> Caller | None:
    """Return the caller of a request, or None for the administrator."""
    found: Caller | None = request.scope.get(_SCOPE)
    return found
