"""Rights of users on topics and groups.

A rule allows or denies a user one verb on the topics or groups that match a pattern: a name, or a prefix
followed by `*`. Of the rules for a verb that match a name, the most specific one applies: the exact name,
then the longest prefix, then `*`. If no rule matches, access is denied. A new rule replaces the rule with the
same user, pattern and verb. A call for all names, or for all names with a prefix, is denied if it is denied
for any of them.

| verb       | on topics                                        | on groups                       |
|------------|--------------------------------------------------|---------------------------------|
| `send`     | send, recall, operations on its timers           |                                 |
| `receive`  | receive, acknowledge, forward to dead letters    | the same, as this group         |
| `transact` | send and end half messages, answer check-backs   |                                 |
| `view`     | queries of operators over HTTP                   | the same                        |
| `admin`    | queries and changes of operators over HTTP       | the same                        |

`admin` includes `view`. `view` gives no right to query a route on the gRPC port.

Names are stored names, including the namespace (`namespace%name`), so that the split of a name into namespace
and name does not matter.

Cost: one lookup for the name, and one for each prefix length in the user's rules. For a prefix, each rule of
the user is examined.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tidewheel.errors import ClientMistake

WILD: Final = "*"
_PATTERN: Final = re.compile(r"(?=.)[%|a-zA-Z0-9_-]{0,127}\*?")
_NAMED_MAX: Final = 4
_USER: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}")


class Verb(StrEnum):
    """Operations that a rule can allow or deny."""

    SEND = "send"
    RECEIVE = "receive"
    TRANSACT = "transact"
    VIEW = "view"
    ADMIN = "admin"


class Kind(StrEnum):
    """The kind of resource."""

    TOPIC = "topic"
    GROUP = "group"


class Effect(StrEnum):
    """The effect of a rule."""

    ALLOW = "allow"
    DENY = "deny"


VERBS: Final = {Kind.TOPIC: frozenset(Verb), Kind.GROUP: frozenset((Verb.RECEIVE, Verb.VIEW, Verb.ADMIN))}


class Need(NamedTuple):
    """The right that a call requires: a verb on a topic or group (stored name).

    None means any verb except `view`.

    A name that ends with `*` stands for all names with this prefix.
    """

    verb: Verb | None
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.verb or 'any right'} on {self.kind} {self.name[:255]!r}"


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """A rule for one verb of one user on the topics or groups that match a pattern."""

    user: str
    kind: Kind
    pattern: str
    verb: Verb
    effect: Effect = Effect.ALLOW

    def __str__(self) -> str:
        return f"{self.effect} {self.user} {self.verb} on {self.kind} {self.pattern}"


def check_user_name(name: str) -> None:
    """Raise `ClientMistake` if a user cannot have this name, which is also the access key."""
    if not _USER.fullmatch(name):
        raise ClientMistake(
            f"{name[:100]!r} cannot be a user's name: give 1 to 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit."
        )


def check_rule(rule: Rule) -> None:
    """Raise `ClientMistake` for an invalid pattern, or a verb that does not apply to the kind."""
    if not _PATTERN.fullmatch(rule.pattern):
        raise ClientMistake(
            f"{rule.pattern[:200]!r} is no name and no prefix: give letters, digits, '_', '-', '%' and '|', "
            "with a '*' at the end for a prefix."
        )
    if rule.verb not in VERBS[rule.kind]:
        fitting = ", ".join(sorted(VERBS[rule.kind]))
        raise ClientMistake(f"Nobody can {rule.verb} a {rule.kind}; the verbs for it are {fitting}.")


def lacking(user: str, missing: Sequence[Need]) -> str:
    """Return the error message for missing rights, with the command that grants them."""
    named = ", ".join(map(str, missing[:_NAMED_MAX]))
    more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
    verb = missing[0].verb
    same = [one for one in missing[:_NAMED_MAX] if one.verb == verb]
    on = "".join(f" --{one.kind} {shlex.quote(one.name[:255])}" for one in same)
    allow = f"tidewheel auth acl allow {user} {verb or Verb.RECEIVE}{on}"
    return f"{user!r} has not {named}{more}. Allow it: {allow}"


_Patterns = dict[str, dict[Verb, Effect]]


class Rights:
    """The rules of all users."""

    def __init__(self) -> None:
        self._rules: dict[tuple[str, Kind], _Patterns] = {}
        self._lengths: dict[tuple[str, Kind], list[int]] = {}

    def __iter__(self) -> Iterator[Rule]:
        """Return an iterator over all rules, sorted by user, kind, pattern and verb."""
        return iter(
            sorted(
                Rule(user, kind, pattern, verb, effect)
                for (user, kind), patterns in self._rules.items()
                for pattern, effects in patterns.items()
                for verb, effect in effects.items()
            )
        )

    def count(self, user: str) -> int:
        """Return the number of rules of a user."""
        return sum(len(effects) for kind in Kind for effects in self._rules.get((user, kind), {}).values())

    def set(self, rule: Rule) -> None:
        """Add a rule, or replace the rule with the same user, pattern and verb."""
        patterns = self._rules.setdefault((rule.user, rule.kind), {})
        patterns.setdefault(rule.pattern, {})[rule.verb] = rule.effect
        self._measure(rule.user, rule.kind)

    def remove(self, rule: Rule) -> bool:
        """Remove the rule for a user, pattern and verb, regardless of its effect.

        Returns False if there is none.
        """
        patterns = self._rules.get((rule.user, rule.kind), {})
        effects = patterns.get(rule.pattern, {})
        is_known = effects.pop(rule.verb, None) is not None
        if is_known and not effects:
            del patterns[rule.pattern]
        self._measure(rule.user, rule.kind)
        return is_known

    def forget(self, user: str) -> None:
        """Remove all rules of a user."""
        for kind in Kind:
            self._rules.pop((user, kind), None)
            self._lengths.pop((user, kind), None)

    def allows(self, user: str, need: Need) -> bool:
        """Return whether a user has the required right."""
        if need.verb is None:
            verbs = VERBS[need.kind] - {Verb.VIEW}
            return any(self.allows(user, need._replace(verb=verb)) for verb in verbs)
        if need.verb is Verb.VIEW and self.allows(user, need._replace(verb=Verb.ADMIN)):
            return True
        patterns = self._rules.get((user, need.kind), {})
        for pattern in self._fitting(user, need):
            effect = patterns.get(pattern, {}).get(need.verb)
            if effect is not None:
                return effect is Effect.ALLOW and not self._denies_within(user, need)
        return False

    def allows_some(self, user: str, verb: Verb, kind: Kind) -> bool:
        """Return whether a rule allows a user the verb on any name of a kind."""
        patterns = tuple(self._rules.get((user, kind), {}).values())
        verbs = (verb, Verb.ADMIN) if verb is Verb.VIEW else (verb,)
        return any(effects.get(one) is Effect.ALLOW for effects in patterns for one in verbs)

    def _denies_within(self, user: str, need: Need) -> bool:
        """Return whether a rule denies the verb for any of the names that a need with `*` stands for."""
        prefix = need.name.removesuffix(WILD)
        return prefix != need.name and any(
            pattern.startswith(prefix) and effects.get(need.verb or Verb.ADMIN) is Effect.DENY
            for pattern, effects in tuple(self._rules.get((user, need.kind), {}).items())
        )

    def _fitting(self, user: str, need: Need) -> Iterator[str]:
        """Yield every pattern that matches a name, most specific first."""
        if not need.name.endswith(WILD):  # a name must not be treated as a pattern
            yield need.name
        for length in self._lengths.get((user, need.kind), ()):
            if length <= len(need.name):
                yield need.name[:length] + WILD

    def _measure(self, user: str, kind: Kind) -> None:
        """Update the lengths of a user's prefixes, longest first."""
        patterns = self._rules.get((user, kind), {})
        lengths = {len(pattern) - 1 for pattern in patterns if pattern.endswith(WILD)}
        self._lengths[user, kind] = sorted(lengths, reverse=True)
