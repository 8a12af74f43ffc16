"""What users may do to topics and groups.

A rule allows or denies a user one verb on the topics or groups of a pattern: a name, or a prefix with `*`.
Of the rules that speak of a verb on a name the most specific decides: the name itself, then the longest
prefix, at last `*`. What no rule speaks of is denied. A rule takes the place of one with its user, pattern
and verb. A call about all names, or all with a prefix, is denied if it is for any of them.

| verb       | on topics                                        | on groups                       |
|------------|--------------------------------------------------|---------------------------------|
| `send`     | send, recall, verbs on its timers                |                                 |
| `receive`  | receive, acknowledge, give up                    | the same, as this group         |
| `transact` | send a half, end it, be asked how it ended       |                                 |
| `view`     | queries of operators over HTTP                   | the same                        |
| `admin`    | queries and changes of operators over HTTP       | the same                        |

`admin` contains `view`. `view` is no right to a route of the protocol port.

Names are those of the store, a namespace included (`namespace%name`): however a caller splits a name into
namespace and rest, the rule is the same.

Cost of a question: one look-up for the name and one for each length of prefix that the user's rules have;
about all names, a look at each rule of the user.
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
    """What may be done."""

    SEND = "send"
    RECEIVE = "receive"
    TRANSACT = "transact"
    VIEW = "view"
    ADMIN = "admin"


class Kind(StrEnum):
    """What it is done to."""

    TOPIC = "topic"
    GROUP = "group"


class Effect(StrEnum):
    """What a rule says."""

    ALLOW = "allow"
    DENY = "deny"


VERBS: Final = {Kind.TOPIC: frozenset(Verb), Kind.GROUP: frozenset((Verb.RECEIVE, Verb.VIEW, Verb.ADMIN))}


class Need(NamedTuple):
    """The right of a call: a verb on a topic or group by its stored name; None: any verb but `view`.

    A name with `*` at its end stands for all names that begin so.
    """

    verb: Verb | None
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.verb or 'any right'} on {self.kind} {self.name[:255]!r}"


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One verb for one user on the topics or groups of a pattern."""

    user: str
    kind: Kind
    pattern: str
    verb: Verb
    effect: Effect = Effect.ALLOW

    def __str__(self) -> str:
        return f"{self.effect} {self.user} {self.verb} on {self.kind} {self.pattern}"


def check_user_name(name: str) -> None:
    """Raise `ClientMistake` unless a user may have this name, which is its access key."""
    if not _USER.fullmatch(name):
        raise ClientMistake(
            f"{name[:100]!r} cannot be a user's name: give 1 to 64 letters, digits, '.', '_' or '-', "
            "the first a letter or digit."
        )


def check_rule(rule: Rule) -> None:
    """Raise `ClientMistake` for a pattern that can match nothing, or a verb that its kind does not have."""
    if not _PATTERN.fullmatch(rule.pattern):
        raise ClientMistake(
            f"{rule.pattern[:200]!r} is no name and no prefix: give letters, digits, '_', '-', '%' and '|', "
            "with a '*' at the end for a prefix."
        )
    if rule.verb not in VERBS[rule.kind]:
        fitting = ", ".join(sorted(VERBS[rule.kind]))
        raise ClientMistake(f"Nobody can {rule.verb} a {rule.kind}; the verbs for it are {fitting}.")


def lacking(user: str, missing: Sequence[Need]) -> str:
    """Return the sentence for rights that a user does not have, with the command that gives them."""
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
        """Return every rule, by user, kind, pattern and verb."""
        return iter(
            sorted(
                Rule(user, kind, pattern, verb, effect)
                for (user, kind), patterns in self._rules.items()
                for pattern, effects in patterns.items()
                for verb, effect in effects.items()
            )
        )

    def count(self, user: str) -> int:
        """Return how many rules speak of a user."""
        return sum(len(effects) for kind in Kind for effects in self._rules.get((user, kind), {}).values())

    def set(self, rule: Rule) -> None:
        """Keep a rule, in place of another about the same."""
        patterns = self._rules.setdefault((rule.user, rule.kind), {})
        patterns.setdefault(rule.pattern, {})[rule.verb] = rule.effect
        self._measure(rule.user, rule.kind)

    def remove(self, rule: Rule) -> bool:
        """Forget what is said of a user, pattern and verb, whatever it says; False if nothing is."""
        patterns = self._rules.get((rule.user, rule.kind), {})
        effects = patterns.get(rule.pattern, {})
        is_known = effects.pop(rule.verb, None) is not None
        if is_known and not effects:
            del patterns[rule.pattern]
        self._measure(rule.user, rule.kind)
        return is_known

    def forget(self, user: str) -> None:
        """Forget every rule of a user."""
        for kind in Kind:
            self._rules.pop((user, kind), None)
            self._lengths.pop((user, kind), None)

    def allows(self, user: str, need: Need) -> bool:
        """Return whether a user may."""
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
        """Return whether a rule denies the verb on one of the names that a need with `*` stands for."""
        prefix = need.name.removesuffix(WILD)
        return prefix != need.name and any(
            pattern.startswith(prefix) and effects.get(need.verb or Verb.ADMIN) is Effect.DENY
            for pattern, effects in tuple(self._rules.get((user, need.kind), {}).items())
        )

    def _fitting(self, user: str, need: Need) -> Iterator[str]:
        """Yield every pattern that a name can match, the most specific first."""
        if not need.name.endswith(WILD):  # a name is never taken for a pattern
            yield need.name
        for length in self._lengths.get((user, need.kind), ()):
            if length <= len(need.name):
                yield need.name[:length] + WILD

    def _measure(self, user: str, kind: Kind) -> None:
        """Keep the lengths of a user's prefixes, the longest first."""
        patterns = self._rules.get((user, kind), {})
        lengths = {len(pattern) - 1 for pattern in patterns if pattern.endswith(WILD)}
        self._lengths[user, kind] = sorted(lengths, reverse=True)
