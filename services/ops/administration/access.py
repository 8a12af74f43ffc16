"""The operations of `/api/auth` and `/api/refused`: users, rules, tokens, and refused callers.

    GET    /api/auth/users           lists the users, without their secrets
    POST   /api/auth/users           creates a user or replaces its secret; only this answer has the secret
    DELETE /api/auth/users/NAME      removes a user and its rules
    GET    /api/auth/rules?user=     lists rules
    POST   /api/auth/rules           allows or denies verbs, and returns all rules of the user
    POST   /api/auth/rules/remove    removes the rules for the given patterns
    GET    /api/auth/tokens?user=    lists tokens for HTTP, without their secrets
    POST   /api/auth/tokens          creates a token of a user; only this answer has the token
    DELETE /api/auth/tokens/ID       revokes a token: its next call is refused, and its long polls end
    GET    /api/refused?reason=      lists the callers that were refused since the start

A change takes effect with the next call. Users and rules can be created while authentication is off
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
from services.ops.requests.answers import written
from services.ops.requests.given_times import span_in
from services.ops.requests.operation import Operation
from services.ops.requests.request import LIMIT_DEFAULT, Nothing, Span, asked, said_as
from tidewheel.errors import ClientMistake

NEVER_KEPT = {"Cache-Control": "no-store"}


class NewUser(BaseModel):
    """The request to create a user, or to replace the secret of a user (`new_secret`)."""

    model_config = ConfigDict(extra="forbid")

    name: str
    new_secret: bool = False


class NewToken(BaseModel):
    """The request to create a token of a user."""

    model_config = ConfigDict(extra="forbid")

    user: str
    expires: Span | None = Field(
        None, description="Time of expiry, such as 30d from now; default: the token does not expire."
    )


class RulesToRemove(BaseModel):
    """The request to remove the given verbs, or all verbs, of a user from the given patterns."""

    model_config = ConfigDict(extra="forbid")

    user: str
    topics: list[str] = []
    groups: list[str] = []
    verbs: list[Verb] = Field(list(Verb), min_length=1)

    def to_rules(self, effect: Effect = Effect.ALLOW) -> list[Rule]:
        """Return the rules for the given patterns.

        A rule for groups contains only verbs that apply to groups.
        """
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
    """The request to allow or deny verbs to a user."""

    verbs: list[Verb] = Field(min_length=1)
    effect: Effect = Effect.ALLOW


class RulesQuery(Nothing):
    """The user whose rules or tokens are listed."""

    user: str = Field("", description="Only entries of this user.")


class RefusedQuery(Nothing):
    """The reason by which refusals are selected."""

    reason: str = Field("", description="Only callers that were refused for this reason.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=limits.REFUSALS_KEPT)


class UserAnswer(TypedDict):
    """A user and the creation time of its secret, without the secret."""

    name: str
    made_ms: str


class UsersAnswer(TypedDict):
    """All users, sorted by name."""

    users: list[UserAnswer]


class SecretAnswer(TypedDict):
    """The access key and the secret of a user, and whether the broker authenticates callers."""

    access_key: str
    secret: str
    is_asked: bool


class GoneUserAnswer(TypedDict):
    """A user that was removed together with its rules."""

    name: str


class RuleAnswer(TypedDict):
    """A rule, which applies one verb of a user to the topics or groups that match a pattern."""

    user: str
    kind: Literal["topic", "group"]
    pattern: str
    verb: Literal["send", "receive", "transact", "view", "admin"]
    effect: Literal["allow", "deny"]


class RulesAnswer(TypedDict):
    """Rules, sorted by user, kind, pattern and verb, and whether the broker authenticates callers."""

    rules: list[RuleAnswer]
    is_asked: bool


class TokenAnswer(TypedDict):
    """A token of a user. The token expires at `expires_ms`, or never if `expires_ms` is null."""

    id: str
    user: str
    made_ms: str
    expires_ms: str | None
    has_expired: bool


class TokensAnswer(TypedDict):
    """Tokens, sorted by user and age, and whether HTTP requires a token."""

    tokens: list[TokenAnswer]
    is_asked: bool


class NewTokenAnswer(TokenAnswer):
    """A new token with its text, and whether HTTP requires a token."""

    token: str
    is_asked: bool


class RevokedAnswer(TypedDict):
    """A token that was revoked."""

    id: str


class RefusalAnswer(TypedDict):
    """A refused call: its time, reason and address, the claimed identity, and the requested operation."""

    at_ms: str
    reason: str
    host: str
    who: str
    detail: str


class RefusedAnswer(TypedDict):
    """The number of refused calls since the start, by reason, and the last refused calls, newest first."""

    counts: dict[str, int]
    refused: list[RefusalAnswer]


def user_shape(user: User) -> UserAnswer:
    """Return a user in JSON form."""
    return {"name": user.name, "made_ms": str(user.made_ms)}


def rule_shape(rule: Rule) -> RuleAnswer:
    """Return a rule in JSON form."""
    return {
        "user": rule.user,
        "kind": rule.kind.value,
        "pattern": rule.pattern,
        "verb": rule.verb.value,
        "effect": rule.effect.value,
    }


def token_shape(token: Token, now_ms: int) -> TokenAnswer:
    """Return a token in JSON form."""
    return {
        "id": token.id,
        "user": token.user,
        "made_ms": str(token.made_ms),
        "expires_ms": None if token.expires_ms is None else str(token.expires_ms),
        "has_expired": token.has_expired(now_ms),
    }


def refusal_shape(one: Refusal) -> RefusalAnswer:
    """Return a refusal in JSON form."""
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
        """Create a user and its secret."""
        wanted = await said_as(NewUser, request)
        secret = await self._access.add_user(wanted.name, replaces_secret=wanted.new_secret)
        answer = {"access_key": wanted.name, "secret": secret, "is_asked": self._access.is_asked}
        return JSONResponse(answer, status_code=201, headers=NEVER_KEPT)

    async def remove_user(self, request: Request) -> JSONResponse:
        """Remove a user."""
        name = request.path_params["name"]
        await self._access.remove_user(name)
        return JSONResponse({"name": name})

    async def rules(self, request: Request) -> Response:
        """List rules."""
        return await self._rules(self._asked_user(request))

    async def set_rules(self, request: Request) -> Response:
        """Allow or deny verbs to a user."""
        wanted = await said_as(NewRules, request)
        await self._access.set_rules(wanted.to_rules(wanted.effect))
        return await self._rules(wanted.user)

    async def remove_rules(self, request: Request) -> Response:
        """Remove rules."""
        wanted = await said_as(RulesToRemove, request)
        await self._access.remove_rules(wanted.to_rules())
        return await self._rules(wanted.user)

    async def tokens(self, request: Request) -> Response:
        """List tokens."""
        found, now_ms = self._access.tokens(self._asked_user(request)), self._real_ms()
        return await written({"tokens": (token_shape(one, now_ms) for one in found), "is_asked": self._asks})

    async def add_token(self, request: Request) -> JSONResponse:
        """Create a token of a user."""
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
        """Show refused callers."""
        query = asked(RefusedQuery, request)
        latest = self._refusals.latest(query.limit, query.reason)
        shapes = [refusal_shape(one) for one in latest]
        return JSONResponse({"counts": dict(self._refusals.counts), "refused": shapes})

    def _asked_user(self, request: Request) -> str:
        """Return the user in the query. Raise `UserNotFound` if the query names an unknown user."""
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
