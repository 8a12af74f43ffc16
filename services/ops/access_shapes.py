"""Users, rules and refusals as JSON has them; 64-bit numbers (times) go out as strings."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from commitlog import limits
from services.auth.refusals import Refusal
from services.auth.rights import VERBS, Effect, Kind, Rule, Verb
from services.broker.access import User
from services.ops.queries import LIMIT_DEFAULT, Nothing
from tidewheel.errors import ClientMistake


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
    verb: Literal["send", "receive", "transact", "admin"]
    effect: Literal["allow", "deny"]


class RulesAnswer(TypedDict):
    """Rules, by user, kind, pattern and verb; and whether the broker asks callers who they are."""

    rules: list[RuleAnswer]
    is_asked: bool


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


class NewUser(BaseModel):
    """A user to make, or (`new_secret`) one that is to have another secret."""

    model_config = ConfigDict(extra="forbid")

    name: str
    new_secret: bool = False


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
    """Whose rules."""

    user: str = Field("", description="Only those of this user.")


class RefusedQuery(Nothing):
    """Which refusals."""

    reason: str = Field("", description="Only those for this reason.")
    limit: int = Field(LIMIT_DEFAULT, ge=1, le=limits.REFUSALS_KEPT)


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


def refusal_shape(one: Refusal) -> RefusalAnswer:
    """Return a refusal as JSON has it."""
    return {
        "at_ms": str(one.at_ms),
        "reason": one.reason,
        "host": one.host,
        "who": one.who,
        "detail": one.detail,
    }
