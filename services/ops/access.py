"""`/api/auth` and `/api/refused`: who may call, what they may do, and who was sent away.

    GET    /api/auth/users           the users, without their secrets
    POST   /api/auth/users           makes one, or gives one another secret; the answer holds it, this once
    DELETE /api/auth/users/NAME      forgets one and its rules
    GET    /api/auth/rules?user=     rules
    POST   /api/auth/rules           allows or denies; answers all rules of the user
    POST   /api/auth/rules/remove    forgets what is said about these patterns
    GET    /api/refused?reason=      who was sent away since the start

What is changed here counts for the next call. Users and rules may be made before anybody is asked who it is
(`--no-auth`).
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from services.auth.refusals import Refusals
from services.live.live_broker import LiveBroker
from services.ops.access_shapes import (
    NewRules,
    NewUser,
    RefusedQuery,
    RulesQuery,
    RulesToRemove,
    refusal_shape,
    rule_shape,
    user_shape,
)
from services.ops.queries import asked
from services.ops.shapes import body_of, parse

NEVER_KEPT = {"Cache-Control": "no-store"}


class AccessApi:
    """The handlers of `/api/auth` and `/api/refused`."""

    def __init__(self, live: LiveBroker, refusals: Refusals) -> None:
        self._access, self._refusals = live.access, refusals

    async def users(self, request: Request) -> JSONResponse:
        """List the users."""
        return JSONResponse({"users": [user_shape(user) for user in self._access.users()]})

    async def add_user(self, request: Request) -> JSONResponse:
        """Make a user and its secret."""
        wanted = parse(NewUser, await body_of(request))
        secret = await self._access.add_user(wanted.name, renews=wanted.new_secret)
        answer = {"access_key": wanted.name, "secret": secret, "is_asked": self._access.is_asked}
        return JSONResponse(answer, status_code=201, headers=NEVER_KEPT)

    async def remove_user(self, request: Request) -> JSONResponse:
        """Forget a user."""
        name = request.path_params["name"]
        await self._access.remove_user(name)
        return JSONResponse({"name": name})

    async def rules(self, request: Request) -> JSONResponse:
        """List rules."""
        return self._rules(asked(RulesQuery, request).user)

    async def set_rules(self, request: Request) -> JSONResponse:
        """Allow or deny."""
        wanted = parse(NewRules, await body_of(request))
        await self._access.set_rules(wanted.to_rules(wanted.effect))
        return self._rules(wanted.user)

    async def remove_rules(self, request: Request) -> JSONResponse:
        """Forget rules."""
        wanted = parse(RulesToRemove, await body_of(request))
        await self._access.remove_rules(wanted.to_rules())
        return self._rules(wanted.user)

    async def refused(self, request: Request) -> JSONResponse:
        """Show who was sent away."""
        query = asked(RefusedQuery, request)
        latest = self._refusals.latest(query.limit, query.reason)
        shapes = [refusal_shape(one) for one in latest]
        return JSONResponse({"counts": dict(self._refusals.counts), "refused": shapes})

    def _rules(self, user: str) -> JSONResponse:
        rules = [rule_shape(rule) for rule in self._access.rules(user)]
        return JSONResponse({"rules": rules, "is_asked": self._access.is_asked})
