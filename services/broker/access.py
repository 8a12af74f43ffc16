"""Users and their rights, as records of the log. What the rights mean is in `services.auth.rights`.

The body of a `TW_SYS_AUTH` record is JSON:

    verb     further members             effect
    user     name, sealed, made_ms       new, or with another secret
    gone     name                        gone, with all its rules
    rules    rules                       each takes the place of one about the same
    no rules rules                       what is said about the same is forgotten

A rule is [user, kind, pattern, verb, effect]. `sealed` is a secret that only a key outside the store opens
(`services.auth.vault`): the core neither has the key nor needs it.

Rights count from the moment they are appended: what is taken away must not wait for a disk. Nothing here is
refused when the disk is nearly full.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from commitlog import limits
from commitlog.kinds import AUTH_TOPIC
from commitlog.record import TYPE_SYSTEM, Record
from services.auth.rights import Effect, Kind, Rights, Rule, Verb, check_rule, check_user_name
from services.broker.errors import RuleNotFound, UserExists, UserNotFound
from services.broker.store import Store
from tidewheel.errors import ClientMistake


@dataclass(frozen=True, slots=True)
class User:
    """Who may call. `made_ms` is when its secret was made, in the broker's time."""

    name: str
    sealed: str
    made_ms: int


class Access:
    """The users of a broker and what they may do."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._users: dict[str, User] = {}
        self.rights = Rights()

    def user(self, name: str) -> User | None:
        """Return the user of a name; None if there is none."""
        return self._users.get(name)

    def users(self) -> list[User]:
        """Return every user, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def add_user(self, name: str, sealed: str, renews: bool, now_ms: int) -> int:
        """Keep a user, or (`renews`) another secret of one; return what must be durable first.

        Raise `UserExists`, `UserNotFound`, or `ClientMistake` for a name that cannot be.
        """
        check_user_name(name)
        if renews:
            self._check_known(name)
        elif name in self._users:
            raise UserExists(f"{name!r} has a secret already. Give it another: --new-secret.")
        elif len(self._users) >= limits.USER_COUNT_MAX:
            raise ClientMistake(f"There are {limits.USER_COUNT_MAX} users. Remove one first.")
        durable_at = self._append({"verb": "user", "name": name, "sealed": sealed, "made_ms": now_ms}, now_ms)
        assert self._users[name].sealed == sealed, "a user has another secret than was just given"
        return durable_at

    def remove_user(self, name: str, now_ms: int) -> int:
        """Forget a user and all its rules; return what must be durable first. Raise `UserNotFound`."""
        self._check_known(name)
        durable_at = self._append({"verb": "gone", "name": name}, now_ms)
        assert not self.rights.count(name), "rules outlive their user, for the next of that name"
        return durable_at

    def set_rules(self, rules: Sequence[Rule], now_ms: int) -> int:
        """Keep rules; return what must be durable first.

        Raise `UserNotFound`, or `ClientMistake` for a rule that cannot be.
        """
        for rule in rules:
            self._check_known(rule.user)
            check_rule(rule)
            if self.rights.count(rule.user) + len(rules) > limits.RULES_PER_USER_MAX:
                raise ClientMistake(
                    f"{rule.user!r} would have more than {limits.RULES_PER_USER_MAX} rules. Use a prefix."
                )
        return self._append({"verb": "rules", "rules": [astuple(rule) for rule in rules]}, now_ms)

    def remove_rules(self, rules: Sequence[Rule], now_ms: int) -> int:
        """Forget what is said about the same as these rules; raise `RuleNotFound` if nothing is."""
        about = {(rule.user, rule.kind, rule.pattern, rule.verb) for rule in self.rights}
        if not any((rule.user, rule.kind, rule.pattern, rule.verb) in about for rule in rules):
            raise RuleNotFound("See which there are: tidewheel auth acl ls")
        return self._append({"verb": "no rules", "rules": [astuple(rule) for rule in rules]}, now_ms)

    def apply(self, record: Record) -> None:
        """Keep or forget users and rules as a record says."""
        body = json.loads(record.body)
        match body["verb"]:
            case "user":
                self._users[body["name"]] = User(body["name"], body["sealed"], body["made_ms"])
            case "gone":
                self._users.pop(body["name"], None)
                self.rights.forget(body["name"])
            case "rules":
                for stored in body["rules"]:
                    self.rights.set(_rule(stored))
            case "no rules":
                for stored in body["rules"]:
                    self.rights.remove(_rule(stored))

    def freeze(self) -> Any:
        """Return what a snapshot keeps: every user and every rule."""
        return {
            "users": [astuple(user) for user in self._users.values()],
            "rules": [astuple(rule) for rule in self.rights],
        }

    def thaw(self, frozen: Any) -> None:
        """Take a snapshot's part over."""
        for name, sealed, made_ms in frozen["users"]:
            self._users[name] = User(name, sealed, made_ms)
        for stored in frozen["rules"]:
            self.rights.set(_rule(stored))

    def _append(self, body: dict[str, Any], now_ms: int) -> int:
        record = Record(topic=AUTH_TOPIC, body=json.dumps(body).encode(), sys_flag=TYPE_SYSTEM)
        return self._store.append(record, now_ms)

    def _check_known(self, name: str) -> None:
        if name not in self._users:
            raise UserNotFound(f"There is no {name[:100]!r}. Add it: tidewheel auth user add NAME")


def _rule(stored: Sequence[str]) -> Rule:
    user, kind, pattern, verb, effect = stored
    return Rule(user, Kind(kind), pattern, Verb(verb), Effect(effect))
