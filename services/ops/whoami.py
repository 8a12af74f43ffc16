"""`GET /api/whoami`: the caller of a request and its rights; any token may ask.

    caller                                     user   has_all_rights   token   rules
    a user's token                             name   false            its     the user's
    the administrator's token (--http-token)   null   true             null    none
    no token is asked for                      null   true             null    none

`is_administrator`: the caller may use the operations on the whole broker (`needs.WHOLE_BROKER`), either with
all rights or as a user with `admin` on all topics and groups. Rules are the caller's own, so a page can show
what they allow; the decision is made again at each request. Cost: one shape for each of the user's rules.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from services.live.live_broker import LiveBroker
from services.ops.access import RuleAnswer, rule_shape
from services.ops.answers import written
from services.ops.callers import caller_of
from services.ops.needs import WHOLE_BROKER
from services.ops.operation import Operation


class OwnTokenAnswer(TypedDict):
    """The token of this request; it is void from `expires_ms` on, null: once it is revoked."""

    id: str
    made_ms: str
    expires_ms: str | None


class WhoamiAnswer(TypedDict):
    """The caller: a user with its token and rules, or (null) the administrator.

    `is_asked`: whether HTTP asks callers for a token. `is_administrator`: whether the caller may use the
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
        self._access, self._outward, self._asks = live.access, live.clock.outward, asks

    async def whoami(self, request: Request) -> Response:
        """Show the caller and its rights."""
        caller = caller_of(request)
        answer = {"user": None, "is_asked": self._asks, "has_all_rights": caller is None}
        if caller is None:
            return await written(answer | {"is_administrator": True, "token": None, "rules": []})
        token = self._outward(caller.token)
        own: OwnTokenAnswer = {
            "id": token.id,
            "made_ms": str(token.made_ms),
            "expires_ms": None if token.expires_ms is None else str(token.expires_ms),
        }
        about = {"user": caller.user, "is_administrator": caller.may(WHOLE_BROKER), "token": own}
        return await written(answer | about | {"rules": map(rule_shape, self._access.rules(caller.user))})


OPERATIONS: Final = (Operation("GET", "/api/whoami", WhoamiApi.whoami, {200: WhoamiAnswer}),)
