"""The operation `GET /api/whoami`, which returns the caller of a request and its rights for any token.

    caller                                     user   has_all_rights   token       rules
    a user's token                             name   false            the token   the user's
    the administrator's token (--http-token)   null   true             null        none
    no authentication                          null   true             null        none

`is_administrator` is whether the caller may use the operations on the whole broker (`needs.WHOLE_BROKER`),
either with all rights or as a user with `admin` on all topics and groups. The rules of the caller are
returned so that a page can show the permitted operations. Each request is still authorized separately. Cost:
the conversion of each rule of the user.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from services.live.live_broker import LiveBroker
from services.ops.administration.access import RuleAnswer, rule_shape
from services.ops.needs import WHOLE_BROKER
from services.ops.requests.answers import written
from services.ops.requests.callers import caller_of
from services.ops.requests.operation import Operation


class OwnTokenAnswer(TypedDict):
    """The token of the request. The token expires at `expires_ms`, or never if `expires_ms` is null."""

    id: str
    made_ms: str
    expires_ms: str | None


class WhoamiAnswer(TypedDict):
    """The caller, which is a user with its token and rules, or null for the administrator.

    `is_asked` is whether HTTP requires a token. `is_administrator` is whether the caller may use the
    operations on the whole broker.
    """

    user: str | None
    is_asked: bool
    has_all_rights: bool
    is_administrator: bool
    token: OwnTokenAnswer | None
    rules: list[RuleAnswer]


class WhoamiApi:
    """The handler of `/api/whoami`."""

    def __init__(self, live: LiveBroker, *, asks: bool) -> None:
        self._access, self._to_real_time, self._asks = live.access, live.clock.to_real_time, asks

    async def whoami(self, request: Request) -> Response:
        """Show the caller and its rights."""
        caller = caller_of(request)
        answer = {"user": None, "is_asked": self._asks, "has_all_rights": caller is None}
        if caller is None:
            return await written(answer | {"is_administrator": True, "token": None, "rules": []})
        token = self._to_real_time(caller.token)
        own: OwnTokenAnswer = {
            "id": token.id,
            "made_ms": str(token.made_ms),
            "expires_ms": None if token.expires_ms is None else str(token.expires_ms),
        }
        about = {"user": caller.user, "is_administrator": caller.may(WHOLE_BROKER), "token": own}
        return await written(answer | about | {"rules": map(rule_shape, self._access.rules(caller.user))})


OPERATIONS: Final = (Operation("GET", "/api/whoami", WhoamiApi.whoami, {200: WhoamiAnswer}),)
