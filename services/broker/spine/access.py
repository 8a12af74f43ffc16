"""Store users, access rules, and access tokens as log records.

The body of a `TW_SYS_AUTH` record is a JSON object:

    verb     additional members          effect
    user     name, sealed, made_ms       adds a user, or replaces a user's secret
    gone     name                        removes a user and all of the user's rules and tokens
    rules    rules                       sets rules, replacing any rules with the same keys
    no rules rules                       removes the rules with the same keys
    token    id, user, digest, made_ms,  adds a token, and removes the user's tokens that had expired by
             expires_ms                  `made_ms`
    no token id                          revokes a token

A rule is the list [user, kind, pattern, verb, effect] (`services.auth.rights`). The key of a rule consists of
all elements except `effect`. `sealed` is a secret encrypted with a key that is not stored in the log
(`services.auth.vault`). The core never has access to this encryption key. `digest` is the hash of a token
(`services.auth.tokens`).

A change takes effect when its record is appended, not when the record is durable. A slow disk therefore does
not delay a revocation. Changes are accepted even if the disk is almost full.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from commitlog import limits
from commitlog.facts.facts import (
    OfRights,
    RulesRemoved,
    RulesSet,
    Stamp,
    TokenCreated,
    TokenRevoked,
    UserRemoved,
    UserSet,
    record_of,
)
from services.auth.errors import Unauthorized
from services.auth.rights import Effect, Kind, Rights, Rule, Verb, check_rule, check_user_name
from services.auth.tokens import Token, digest_of, id_of
from services.broker.spine.errors import (
    RuleNotFound,
    TokenNotFound,
    UserExists,
    UserNotFound,
)
from services.broker.spine.store import Store
from tidewheel.errors import ClientMistake


@dataclass(frozen=True, slots=True)
class User:
    """A user of the broker.

    `made_ms` is the creation time of the secret, in milliseconds of broker time.
    """

    name: str
    sealed: str
    made_ms: int


class Access:
    """The users, access rules, and tokens of a broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._users: dict[str, User] = {}
        self._tokens: dict[str, Token] = {}
        self._ids: dict[str, dict[str, None]] = {}
        """The token ids of each user, oldest first, by user name."""
        self.rights = Rights()

    def user(self, name: str) -> User | None:
        """Return the user with the given name, or None if there is no such user."""
        return self._users.get(name)

    def users(self) -> list[User]:
        """Return all users, sorted by name."""
        return [self._users[name] for name in sorted(self._users)]

    def add_user(self, name: str, sealed: str, replaces_secret: bool, now_ms: int) -> int:
        """Add a user, or replace the secret of an existing user if `replaces_secret` is true.

        Return the offset up to which the log must be durable before a response is sent. Raise `UserExists` if
        the name of a new user is in use, `UserNotFound` if the user whose secret is replaced does not exist,
        or `ClientMistake` if the name is illegal or if there are too many users.
        """
        check_user_name(name)
        if replaces_secret:
            self.check_user_exists(name)
        elif name in self._users:
            raise UserExists(f"{name!r} has a secret already. Give it another: --new-secret.")
        elif len(self._users) >= limits.USER_COUNT_MAX:
            raise ClientMistake(f"There are {limits.USER_COUNT_MAX} users. Remove one first.")
        durable_at = self._append(UserSet(name, sealed, now_ms), now_ms)
        assert self._users[name].sealed == sealed, "a user has another secret than was just given"
        return durable_at

    def remove_user(self, name: str, now_ms: int) -> int:
        """Remove a user, including all rules and tokens. Raise `UserNotFound` if the user does not exist.

        Return the offset up to which the log must be durable before a response is sent.
        """
        self.check_user_exists(name)
        durable_at = self._append(UserRemoved(name), now_ms)
        assert not self.rights.count(name), "rules outlive their user, for the next of that name"
        assert not self.tokens(name), "tokens outlive their user, for the next of that name"
        return durable_at

    def set_rules(self, rules: Sequence[Rule], now_ms: int) -> int:
        """Store rules. Return the offset up to which the log must be durable before a response is sent.

        Raise `UserNotFound` if the user of a rule does not exist, or `ClientMistake` if a rule is illegal or
        if a user would have too many rules.
        """
        for rule in rules:
            self.check_user_exists(rule.user)
            check_rule(rule)
            if self.rights.count(rule.user) + len(rules) > limits.RULES_PER_USER_MAX:
                raise ClientMistake(
                    f"{rule.user!r} would have more than {limits.RULES_PER_USER_MAX} rules. Use a prefix."
                )
        return self._append(RulesSet([astuple(rule) for rule in rules]), now_ms)

    def remove_rules(self, rules: Sequence[Rule], now_ms: int) -> int:
        """Remove the rules with the same keys as `rules`. Raise `RuleNotFound` if no such rule exists.

        Return the offset up to which the log must be durable before a response is sent.
        """
        about = {(rule.user, rule.kind, rule.pattern, rule.verb) for rule in self.rights}
        if not any((rule.user, rule.kind, rule.pattern, rule.verb) in about for rule in rules):
            raise RuleNotFound("See which there are: tidewheel auth acl ls")
        return self._append(RulesRemoved([astuple(rule) for rule in rules]), now_ms)

    def tokens(self, user: str = "") -> list[Token]:
        """Return a user's tokens, oldest first. Without a user, return all tokens, sorted by user name."""
        names = [user] if user else sorted(self._ids)
        return [self._tokens[token_id] for name in names for token_id in self._ids.get(name, ())]

    def find_token(self, text: str, now_ms: int) -> Token:
        """Return the token with the given text. Raise `Unauthorized` for an unknown or expired token.

        A revoked token is reported as unknown.
        """
        token = self._tokens.get(id_of(text))
        if token is None or not hmac.compare_digest(token.digest, digest_of(text)):
            raise Unauthorized(
                "The token is not known here: it was revoked, its user was removed, or it was never made. "
                "Make one: tidewheel auth token add USER. Commands send the one in the file that "
                "TIDEWHEEL_HTTP_TOKEN names."
            )
        self.check_token(token, now_ms)
        return token

    def check_token(self, token: Token, now_ms: int) -> None:
        """Raise `Unauthorized` if a token is revoked or expired."""
        another = f"Make another: tidewheel auth token add {token.user}"
        if self._tokens.get(token.id) != token:
            raise Unauthorized(f"Token {token.id} of {token.user!r} was revoked. {another}")
        if token.has_expired(now_ms):
            raise Unauthorized(f"Token {token.id} of {token.user!r} has expired. {another}")

    def add_token(self, user: str, text: str, kept_ms: int | None, now_ms: int) -> int:
        """Store a token that expires after `kept_ms` milliseconds, or never if `kept_ms` is None.

        Return the offset up to which the log must be durable before a response is sent. Raise `UserNotFound`
        if the user does not exist, or `ClientMistake` if there are too many tokens or if the token id is
        empty or in use.
        """
        self.check_user_exists(user)
        if len(self._tokens) >= limits.TOKEN_COUNT_MAX:
            raise ClientMistake(f"There are {limits.TOKEN_COUNT_MAX} tokens. Revoke one first.")
        standing = [one for one in self.tokens(user) if not one.has_expired(now_ms)]
        if len(standing) >= limits.TOKENS_PER_USER_MAX:
            raise ClientMistake(
                f"{user!r} has {len(standing)} tokens, as many as may be. Revoke one: tidewheel auth token "
                f"ls {user}"
            )
        expires_ms = None if kept_ms is None else now_ms + kept_ms
        token = Token(id_of(text), user, digest_of(text), now_ms, expires_ms)
        if not token.id or token.id in self._tokens:
            raise ClientMistake("Another token has this id. Ask again.")
        durable_at = self._append(TokenCreated(*astuple(token)), now_ms)
        assert self._tokens[token.id] == token, "another token was kept than was made"
        return durable_at

    def revoke_token(self, token_id: str, now_ms: int) -> int:
        """Revoke a token. Raise `TokenNotFound` if no token has the id `token_id`.

        Return the offset up to which the log must be durable before a response is sent.
        """
        if token_id not in self._tokens:
            raise TokenNotFound(
                f"{token_id[:100]!r} was revoked, or never made. See which there are: tidewheel auth token ls"
            )
        durable_at = self._append(TokenRevoked(token_id), now_ms)
        assert token_id not in self._tokens, "a token stands that was revoked"
        return durable_at

    def apply(self, fact: OfRights, stamp: Stamp) -> None:
        """Apply a change to users, rules, or tokens."""
        match fact:
            case UserSet():
                self._users[fact.name] = User(*fact)
            case UserRemoved():
                self._users.pop(fact.name, None)
                self.rights.forget(fact.name)
                self._forget_tokens(fact.name)
            case TokenCreated():
                token = Token(*fact)
                self._forget_tokens(token.user, token.made_ms)
                self._keep_token(token)
            case TokenRevoked():
                self._forget_token(fact.id)
            case RulesSet():
                for stored in fact.rules:
                    self.rights.set(_rule(stored))
            case RulesRemoved():
                for stored in fact.rules:
                    self.rights.remove(_rule(stored))

    def freeze(self) -> Any:
        """Return all users, rules, and tokens for a snapshot."""
        return {
            "users": [astuple(user) for user in self._users.values()],
            "rules": [astuple(rule) for rule in self.rights],
            "tokens": [astuple(token) for token in self._tokens.values()],
        }

    def thaw(self, frozen: Any) -> None:
        """Restore the users, rules, and tokens from a snapshot."""
        for name, sealed, made_ms in frozen["users"]:
            self._users[name] = User(name, sealed, made_ms)
        for stored in frozen["rules"]:
            self.rights.set(_rule(stored))
        for stored in frozen["tokens"]:
            self._keep_token(Token(*stored))

    def _keep_token(self, token: Token) -> None:
        self._tokens[token.id] = token
        self._ids.setdefault(token.user, {})[token.id] = None

    def _forget_token(self, token_id: str) -> None:
        token = self._tokens.pop(token_id, None)
        if token is not None:
            del self._ids[token.user][token_id]
            if not self._ids[token.user]:
                del self._ids[token.user]

    def _forget_tokens(self, user: str, at_ms: int | None = None) -> None:
        """Remove all tokens of a user or, if `at_ms` is given, only those that had expired by `at_ms`."""
        for one in self.tokens(user):
            if at_ms is None or one.has_expired(at_ms):
                self._forget_token(one.id)

    def _append(self, fact: OfRights, now_ms: int) -> int:
        return self._store.append(record_of(fact), now_ms).end_offset

    def check_user_exists(self, name: str) -> None:
        """Raise `UserNotFound` if the user does not exist."""
        if name not in self._users:
            raise UserNotFound(f"There is no {name[:100]!r}. Add it: tidewheel auth user add NAME")


def _rule(stored: Sequence[str]) -> Rule:
    user, kind, pattern, verb, effect = stored
    return Rule(user, Kind(kind), pattern, Verb(verb), Effect(effect))
