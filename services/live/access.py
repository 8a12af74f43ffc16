"""Manages users, rights, and tokens on behalf of callers in the event loop.

The core stores only encrypted secrets, and only this module has access to the key. Each secret is generated
here and returned only once. The decrypted secret is cached in memory after its first use. Tokens are stored
only as hashes. The key is read only to encrypt or decrypt a secret, so a broker without users needs no key. A
change takes effect when its record is appended, and is confirmed to the caller once the record is durable.
After each change that may revoke a right, the callbacks in `watching` recheck the rights of waiting calls.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from services.auth.errors import WrongKey
from services.auth.rights import Kind, Need, Rule, Verb, check_user_name
from services.auth.tokens import ID_BYTES, Token, id_of, text_of
from services.auth.tokens import SECRET_BYTES as TOKEN_BYTES
from services.auth.vault import NONCE_BYTES, seal, unseal
from services.broker.spine.access import Access, User
from services.live.clock import Clock
from tidewheel.errors import ConfigurationError

SECRET_BYTES: Final = 30

log = structlog.get_logger()

Key = Callable[[bool], bytes]
"""Returns the encryption key. If the key does not exist and the argument is true, generates a key."""


Dismiss = Callable[[str], None]
"""Disconnects the clients of a user that was removed or whose secret was replaced."""


def raise_missing_key_error(may_make: bool) -> bytes:
    """Raise `ConfigurationError` because the broker has no key file."""
    raise ConfigurationError("The broker has no key file for secrets. Start it with --auth-key FILE.")


def ignore_user(user: str) -> None:
    """Do nothing. A broker without a client port has no clients to disconnect."""


def noop() -> None:
    """Do nothing. This is the default until a callback for rule changes is set."""


class LiveAccess:
    """Manages the users of a broker, their rights, and their tokens.

    The methods may raise `ResultUnknown` and any error of the core.
    """

    def __init__(self, core: Callable[[], Access], call: Callable[..., Awaitable[int]], clock: Clock) -> None:
        self._core, self._call, self._clock = core, call, clock
        self._key: Key = raise_missing_key_error
        self._opened: dict[str, tuple[str, bytes]] = {}
        self._dismiss_callback: Dismiss = ignore_user
        self.is_asked = False
        """True if callers must authenticate.

        Users and rules may be added before authentication is required.
        """
        self._rules_callback: Callable[[], None] = noop
        self.watching: set[Callable[[], None]] = set()
        """Callbacks that recheck the rights of waiting calls."""

    def set_rules_callback(self, changed: Callable[[], None]) -> None:
        """Set the callback for changes of the access rules."""
        self._rules_callback = changed

    def set_dismiss_callback(self, dismiss: Dismiss) -> None:
        """Set the callback that disconnects the clients of a user whose secret has become invalid."""
        self._dismiss_callback = dismiss

    def set_key_source(self, key: Key) -> None:
        """Set the function that returns the encryption key for secrets."""
        self._key = key

    def enable_authentication(self) -> None:
        """Require authentication, and decrypt the secrets of all users.

        Raise `WrongKey` if a secret was encrypted with a different key.
        """
        self.is_asked = True
        for user in self._core().users():
            self._open(user)

    def secret_of(self, name: str) -> bytes | None:
        """Return the secret of a user, or None if the user does not exist."""
        user = self._core().user(name)
        if user is None:
            self._opened.pop(name, None)
            return None
        sealed, secret = self._opened.get(name, ("", b""))
        return secret if sealed == user.sealed else self._open(user)

    def allows(self, user: str, need: Need) -> bool:
        """Return whether a user has the right `need`. A removed user has no rights."""
        return self._core().rights.allows(user, need)

    def allows_some(self, user: str, verb: Verb, kind: Kind) -> bool:
        """Return whether a user has the right `verb` on at least one resource of the given kind."""
        return self._core().rights.allows_some(user, verb, kind)

    def users(self) -> list[User]:
        """Return all users, sorted by name."""
        return self._clock.to_real_time(self._core().users())

    def check_user_exists(self, user: str) -> None:
        """Raise `UserNotFound` if the user does not exist."""
        self._core().check_user_exists(user)

    def rules(self, user: str = "") -> list[Rule]:
        """Return the access rules of a user, or of all users if `user` is empty."""
        return [rule for rule in self._core().rights if user in ("", rule.user)]

    async def add_user(self, name: str, *, replaces_secret: bool) -> str:
        """Add a user, or replace the secret of an existing user.

        Return the secret, which cannot be retrieved later.
        """
        check_user_name(name)
        secret = secrets.token_urlsafe(SECRET_BYTES)
        sealed = seal(self._key(not self._core().users()), name, secret.encode(), os.urandom(NONCE_BYTES))
        await self._call(self._core().add_user, name, sealed, replaces_secret)
        log.info("secret made", user=name)
        self._dismiss_callback(name)
        return secret

    async def remove_user(self, name: str) -> None:
        """Remove a user and its access rules.

        The user's next call is rejected, its open streams are closed, and its leases are released.
        """
        await self._change(self._core().remove_user, name)
        log.info("user removed", user=name)
        self._dismiss_callback(name)

    async def set_rules(self, rules: Sequence[Rule]) -> None:
        """Store access rules. A rule applies to all subsequent calls of its user."""
        await self._change(self._core().set_rules, rules)
        log.info("rules set", rules=[str(rule) for rule in rules])
        self._rules_callback()

    async def remove_rules(self, rules: Sequence[Rule]) -> None:
        """Remove the stored access rules that match one of `rules` in user, kind, pattern, and verb."""
        await self._change(self._core().remove_rules, rules)
        log.info("rules removed", rules=[str(rule) for rule in rules])
        self._rules_callback()

    def tokens(self, user: str = "") -> list[Token]:
        """Return the tokens of a user, or of all users if `user` is empty."""
        return self._clock.to_real_time(self._core().tokens(user))

    def find_token(self, text: str) -> Token:
        """Return the token with the given text. Raise `Unauthorized` if the token is invalid."""
        return self._core().find_token(text, self._clock.now_ms())

    def check_token(self, token: Token) -> None:
        """Raise `Unauthorized` if a token is no longer valid."""
        self._core().check_token(token, self._clock.now_ms())

    def seconds_left(self, token: Token) -> float | None:
        """Return the number of seconds until a token expires, or None for a token without an expiry time."""
        left_ms = None if token.expires_ms is None else token.expires_ms - self._clock.now_ms()
        return None if left_ms is None else max(0, left_ms) / 1000

    async def add_token(self, user: str, kept_ms: int | None) -> tuple[str, Token]:
        """Create a token for a user. Return the token text and its metadata.

        The token text cannot be retrieved later.
        """
        text = text_of(os.urandom(ID_BYTES + TOKEN_BYTES))
        calling = self._call(self._core().add_token, user, text, kept_ms)
        made = [one for one in self.tokens(user) if one.id == id_of(text)]
        await calling
        log.info("token made", user=user, token=id_of(text))
        return text, made[0]

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token. Later calls with the token fail, and its open long polls end."""
        await self._change(self._core().revoke_token, token_id)
        log.info("token revoked", token=token_id)

    async def _change(self, verb: Callable[..., int], *arguments: object) -> None:
        """Apply a change that may revoke rights, recheck waiting calls, and wait for durability."""
        calling = self._call(verb, *arguments)
        self.check_waiting_calls()
        await calling

    def check_waiting_calls(self) -> None:
        """Recheck the rights of waiting calls after a right is revoked or the clock advances."""
        for look in tuple(self.watching):
            look()

    def _open(self, user: User) -> bytes:
        secret = unseal(self._key(False), user.name, user.sealed)
        if secret is None:
            raise WrongKey(
                f"That of {user.name!r} was sealed with another. Give the right file with --auth-key."
            )
        self._opened[user.name] = (user.sealed, secret)
        return secret
