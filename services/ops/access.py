"""`/api/auth` and `/api/refused`: who may call, what they may do, and who was sent away.

    GET    /api/auth/users           the users, without their secrets
    POST   /api/auth/users           makes one, or gives one another secret; the answer holds it, this once
    DELETE /api/auth/users/NAME      forgets one and its rules
    GET    /api/auth/rules?user=     rules
    POST   /api/auth/rules           allows or denies; answers all rules of the user
    POST   /api/auth/rules/remove    forgets what is said about these patterns
    GET    /api/auth/tokens?user=    tokens for HTTP, without their secrets
    POST   /api/auth/tokens          makes one of a user; the answer holds it, this once
    DELETE /api/auth/tokens/ID       revokes one: its next call is refused, its long polls end
    GET    /api/refused?reason=      who was sent away since the start

What is changed here counts for the next call. Users and rules may be made before anybody is asked who it is
(`--no-auth`).
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from services.auth.refusals import Refusal, Refusals
from services.auth.rights import VERBS, Effect, Kind, Rule, Verb
from services.auth.tokens import Token
from services.broker.spine.access import User
from services.live.live_broker import LiveBroker
from services.ops.answers import written
from services.ops.given_times import span_in
from services.ops.operation import Operation
from services.ops.request import LIMIT_DEFAULT, Nothing, Span, asked, said_as
from tidewheel.errors import ClientMistake

NEVER_KEPT = {"Cache-Control": "no-store"}


class NewUser(BaseModel):
    """A user to make, or (`new_secret`) one that is to have another secret."""

    model_config = ConfigDict(extra="forbid")

    name: str
    new_secret: bool = False


class NewToken(BaseModel):
    """A token to make for a user."""

    model_config = ConfigDict(extra="forbid")

    user: str
    expires: Span | None = Field(
        None, description="Time of expiry, such as 30d from now; default: the token does not expire."
    )


class RulesToRemove(BaseModel):
    """What is to be forgotten: these verbs, or all, of a user on these patterns."""

    model_config = ConfigDict(extra="forbid")

    user: str
    topics: list[str] = []
    groups: list[str] = []
    verbs: list[Verb] = Field(list(Verb), min_length=1)

    def to_rules(self, effect: Effect = Effect.ALLOW) -> list[Rule]:
        """Return the rules of these patterns; a group has only the verbs that are for groups."""
        if not self.topics and not self.groups:
            raise ClientMistake("Name a topic or a group, or a prefix of them such as orders*.")
        for_groups = [verb for verb in self.verbs if verb in VERBS[Kind.GROUP]] or self.verbs
        return [
            Rule(self.user, kind, pattern, verb, effect)
            for kind, patterns, verbs in (
                (Kind.TOPIC, self.topics, self.verbs),
                (Kind.GROUP, self.groups, for_groups),
            )
            for pattern in patterns
            for verb in verbs
        ]


class NewRules(RulesToRemove):
    """What a user may do, or may not."""

    verbs: list[Verb] = Field(min_length=1)
    effect: Effect = Effect.ALLOW


class RulesQuery(Nothing):
    """Whose rules, or tokens."""

    user: str = Field("", description="Only entries of this user.")


class RefusedQuery(Nothing):
    """Which refusals."""

    reason: str = Field("", description="Only callers that were refused for this reason.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=limits.REFUSALS_KEPT)


class UserAnswer(TypedDict):
    """A user and when its secret was made; the secret itself is not told."""

    name: str
    made_ms: str


class UsersAnswer(TypedDict):
    """Every user, by name."""

    users: list[UserAnswer]


class SecretAnswer(TypedDict):
    """A user's access key and its secret, told this once; and whether the broker asks callers who they
    are."""

    access_key: str
    secret: str
    is_asked: bool


class GoneUserAnswer(TypedDict):
    """A user that has been removed, with its rules."""

    name: str


class RuleAnswer(TypedDict):
    """One verb for one user on the topics or groups of a pattern."""

    user: str
    kind: Literal["topic", "group"]
    pattern: str
    verb: Literal["send", "receive", "transact", "view", "admin"]
    effect: Literal["allow", "deny"]


class RulesAnswer(TypedDict):
    """Rules, by user, kind, pattern and verb; and whether the broker asks callers who they are."""

    rules: list[RuleAnswer]
    is_asked: bool


class TokenAnswer(TypedDict):
    """A token of a user; it is void from `expires_ms` on, null: once it is revoked."""

    id: str
    user: str
    made_ms: str
    expires_ms: str | None
    has_expired: bool


class TokensAnswer(TypedDict):
    """Tokens, by user, the oldest first; and whether HTTP asks callers for one."""

    tokens: list[TokenAnswer]
    is_asked: bool


class NewTokenAnswer(TokenAnswer):
    """A token that was made, told this once; and whether HTTP asks callers for one."""

    token: str
    is_asked: bool


class RevokedAnswer(TypedDict):
    """A token that has been revoked."""

    id: str


class RefusalAnswer(TypedDict):
    """Somebody who was sent away: when, why, from where, who it said it was, and what it wanted."""

    at_ms: str
    reason: str
    host: str
    who: str
    detail: str


class RefusedAnswer(TypedDict):
    """How many were sent away since the start, by reason, and the last ones, the newest first."""

    counts: dict[str, int]
    refused: list[RefusalAnswer]


def user_shape(user: User) -> UserAnswer:
    """Return a user as JSON has it."""
    return {"name": user.name, "made_ms": str(user.made_ms)}


def rule_shape(rule: Rule) -> RuleAnswer:
    """Return a rule as JSON has it."""
    return {
        "user": rule.user,
        "kind": rule.kind.value,
        "pattern": rule.pattern,
        "verb": rule.verb.value,
        "effect": rule.effect.value,
    }


def token_shape(token: Token, now_ms: int) -> TokenAnswer:
    """Return a token as JSON has it."""
    return {
        "id": token.id,
        "user": token.user,
        "made_ms": str(token.made_ms),
        "expires_ms": None if token.expires_ms is None else str(token.expires_ms),
        "has_expired": token.has_expired(now_ms),
    }


def refusal_shape(one: Refusal) -> RefusalAnswer:
    """Return a refusal as JSON has it."""
    return {
        "at_ms": str(one.at_ms),
        "reason": one.reason,
        "host": one.host,
        "who": one.who,
        "detail": one.detail,
    }


class AccessApi:
    """The handlers of `/api/auth` and `/api/refused`."""

    def __init__(self, live: LiveBroker, refusals: Refusals, *, asks: bool) -> None:
        self._access, self._refusals, self._asks = live.access, refusals, asks
        self._real_ms = live.clock.real_ms

    async def users(self, request: Request) -> Response:
        """List the users."""
        return await written({"users": map(user_shape, self._access.users())})

    async def add_user(self, request: Request) -> JSONResponse:
        """Make a user and its secret."""
        wanted = await said_as(NewUser, request)
        secret = await self._access.add_user(wanted.name, renews=wanted.new_secret)
        answer = {"access_key": wanted.name, "secret": secret, "is_asked": self._access.is_asked}
        return JSONResponse(answer, status_code=201, headers=NEVER_KEPT)

    async def remove_user(self, request: Request) -> JSONResponse:
        """Forget a user."""
        name = request.path_params["name"]
        await self._access.remove_user(name)
        return JSONResponse({"name": name})

    async def rules(self, request: Request) -> Response:
        """List rules."""
        return await self._rules(self._asked_user(request))

    async def set_rules(self, request: Request) -> Response:
        """Allow or deny."""
        wanted = await said_as(NewRules, request)
        await self._access.set_rules(wanted.to_rules(wanted.effect))
        return await self._rules(wanted.user)

    async def remove_rules(self, request: Request) -> Response:
        """Forget rules."""
        wanted = await said_as(RulesToRemove, request)
        await self._access.remove_rules(wanted.to_rules())
        return await self._rules(wanted.user)

    async def tokens(self, request: Request) -> Response:
        """List tokens."""
        found, now_ms = self._access.tokens(self._asked_user(request)), self._real_ms()
        return await written({"tokens": (token_shape(one, now_ms) for one in found), "is_asked": self._asks})

    async def add_token(self, request: Request) -> JSONResponse:
        """Make a token of a user."""
        wanted = await said_as(NewToken, request)
        kept_ms = None if wanted.expires is None else span_in(wanted.expires, "expires")
        if kept_ms is not None and not 0 < kept_ms <= KEPT_MS_MAX:
            raise ClientMistake(f"expires is {wanted.expires!r}: give a span up to 3650d, or leave it away.")
        text, token = await self._access.add_token(wanted.user, kept_ms)
        answer = {**token_shape(token, self._real_ms()), "token": text, "is_asked": self._asks}
        return JSONResponse(answer, status_code=201, headers=NEVER_KEPT)

    async def revoke_token(self, request: Request) -> JSONResponse:
        """Revoke a token."""
        token_id = request.path_params["id"]
        await self._access.revoke_token(token_id)
        return JSONResponse({"id": token_id})

    async def refused(self, request: Request) -> JSONResponse:
        """Show who was sent away."""
        query = asked(RefusedQuery, request)
        latest = self._refusals.latest(query.limit, query.reason)
        shapes = [refusal_shape(one) for one in latest]
        return JSONResponse({"counts": dict(self._refusals.counts), "refused": shapes})

    def _asked_user(self, request: Request) -> str:
        """Return the user in the query; raise `UserNotFound`: of a misspelt name nothing is listed."""
        name = asked(RulesQuery, request).user
        if name:
            self._access.check_user_exists(name)
        return name

    async def _rules(self, user: str) -> Response:
        rules = map(rule_shape, self._access.rules(user))
        return await written({"rules": rules, "is_asked": self._access.is_asked})


USERS: Final = "/api/auth/users"
RULES: Final = "/api/auth/rules"
TOKENS: Final = "/api/auth/tokens"
KEPT_MS_MAX: Final = 3_650 * 86_400_000
"""The longest time that a token is kept which expires: what is meant to be longer does not."""
OPERATIONS: Final = (
    Operation("GET", USERS, AccessApi.users, {200: UsersAnswer}),
    Operation(
        "POST",
        USERS,
        AccessApi.add_user,
        {201: SecretAnswer},
        bodies=(NewUser,),
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "DELETE",
        f"{USERS}/{{name}}",
        AccessApi.remove_user,
        {200: GoneUserAnswer},
        refusals=(400, 404, 503),
    ),
    Operation("GET", RULES, AccessApi.rules, {200: RulesAnswer}, RulesQuery, refusals=(400, 404)),
    Operation(
        "POST", RULES, AccessApi.set_rules, {200: RulesAnswer}, bodies=(NewRules,), refusals=(400, 404, 503)
    ),
    Operation(
        "POST",
        f"{RULES}/remove",
        AccessApi.remove_rules,
        {200: RulesAnswer},
        bodies=(RulesToRemove,),
        refusals=(400, 404, 503),
    ),
    Operation("GET", TOKENS, AccessApi.tokens, {200: TokensAnswer}, RulesQuery, refusals=(400, 404)),
    Operation(
        "POST",
        TOKENS,
        AccessApi.add_token,
        {201: NewTokenAnswer},
        bodies=(NewToken,),
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "DELETE",
        f"{TOKENS}/{{id}}",
        AccessApi.revoke_token,
        {200: RevokedAnswer},
        refusals=(400, 404, 503),
    ),
    Operation("GET", "/api/refused", AccessApi.refused, {200: RefusedAnswer}, RefusedQuery),
)
