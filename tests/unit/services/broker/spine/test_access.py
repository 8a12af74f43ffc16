"""Users and rights live in the log: a start and a snapshot lead to the same, and no secret is in either."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commitlog import limits
from services.auth.errors import Unauthorized
from services.auth.rights import Effect, Kind, Need, Rule, Verb
from services.auth.tokens import ID_BYTES, SECRET_BYTES, digest_of, id_of, text_of
from services.broker.broker import Broker
from services.broker.spine.access import User
from services.broker.spine.errors import (
    RuleNotFound,
    TokenNotFound,
    UserExists,
    UserNotFound,
)
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.topics import check_topic_name, require_receivable_topic
from tests.memory_disk import MemoryDisk
from tidewheel.errors import ClientMistake, IllegalTopic

NOW_MS = 1_763_700_000_000
SETTINGS = BrokerSettings(segment_bytes=64 * 1024)
SEND = Rule("orders", Kind.TOPIC, "orders*", Verb.SEND)
NEED = Need(Verb.SEND, Kind.TOPIC, "orders-new")


class Bench:
    """A broker that can be closed and opened again."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.open()

    def open(self) -> None:
        self.broker = Broker.open(self.disk, SETTINGS, NOW_MS)
        self.access = self.broker.access

    def flush(self) -> None:
        while flush := self.broker.take_flush():
            flush.write()
            self.broker.complete_flush(flush, NOW_MS)

    def checkpoint(self) -> None:
        self.flush()
        checkpoint = self.broker.checkpoint(NOW_MS)
        checkpoint.write(self.disk)
        self.broker.complete_checkpoint(checkpoint)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.access.add_user("orders", "sealed", False, NOW_MS)
    made.access.set_rules([SEND], NOW_MS)
    return made


@pytest.mark.parametrize("how", [Bench.flush, Bench.checkpoint], ids=["the log", "a snapshot"])
def test_what_was_kept_is_there_again_after_a_start(bench: Bench, how: Callable[[Bench], object]) -> None:
    bench.access.add_user("gone", "sealed", False, NOW_MS)
    bench.access.set_rules([Rule("gone", Kind.GROUP, "*", Verb.RECEIVE)], NOW_MS)
    bench.access.remove_user("gone", NOW_MS)
    denied = Rule("orders", Kind.TOPIC, "orders-old", Verb.SEND, Effect.DENY)
    bench.access.set_rules([denied, Rule("orders", Kind.TOPIC, "x", Verb.SEND)], NOW_MS)
    bench.access.remove_rules([Rule("orders", Kind.TOPIC, "x", Verb.SEND)], NOW_MS)
    how(bench)
    bench.open()
    assert bench.access.users() == [User("orders", "sealed", NOW_MS)]
    assert list(bench.access.rights) == [SEND, denied]
    assert bench.access.rights.allows("orders", NEED)


def test_a_log_behind_a_snapshot_goes_on_from_it(bench: Bench) -> None:
    bench.checkpoint()
    bench.access.add_user("orders", "other", True, NOW_MS + 1)
    bench.flush()
    bench.open()
    assert bench.access.user("orders") == User("orders", "other", NOW_MS + 1)
    assert list(bench.access.rights) == [SEND]


def test_what_was_not_durable_is_not_there(bench: Bench) -> None:
    bench.flush()
    bench.access.remove_user("orders", NOW_MS)
    assert not bench.access.rights.allows("orders", NEED)
    bench.open()
    assert bench.access.rights.allows("orders", NEED)


def test_a_user_that_comes_again_has_no_right_left_over(bench: Bench) -> None:
    bench.access.remove_user("orders", NOW_MS)
    bench.access.add_user("orders", "sealed", False, NOW_MS)
    assert list(bench.access.rights) == []


def test_what_cannot_be_is_refused_and_not_stored(bench: Bench) -> None:
    end_offset = bench.broker.end_offset
    with pytest.raises(UserExists, match="new-secret"):
        bench.access.add_user("orders", "other", False, NOW_MS)
    for unknown in (
        lambda: bench.access.add_user("nobody", "s", True, NOW_MS),
        lambda: bench.access.remove_user("nobody", NOW_MS),
        lambda: bench.access.set_rules([Rule("nobody", Kind.TOPIC, "x", Verb.SEND)], NOW_MS),
    ):
        with pytest.raises(UserNotFound):
            unknown()
    with pytest.raises(RuleNotFound):
        bench.access.remove_rules([Rule("orders", Kind.TOPIC, "x", Verb.SEND)], NOW_MS)
    for mistake in (
        lambda: bench.access.add_user("a/b", "s", False, NOW_MS),
        lambda: bench.access.set_rules([SEND, Rule("orders", Kind.GROUP, "g", Verb.SEND)], NOW_MS),
    ):
        with pytest.raises(ClientMistake):
            mistake()
    assert bench.broker.end_offset == end_offset
    assert list(bench.access.rights) == [SEND]


def test_users_and_rules_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "USER_COUNT_MAX", 1)
    monkeypatch.setattr(limits, "RULES_PER_USER_MAX", 2)
    with pytest.raises(ClientMistake, match="1 users"):
        bench.access.add_user("carts", "s", False, NOW_MS)
    two = [Rule("orders", Kind.TOPIC, name, Verb.SEND) for name in ("a", "b")]
    with pytest.raises(ClientMistake, match="more than 2 rules"):
        bench.access.set_rules(two, NOW_MS)
    bench.access.set_rules(two[:1], NOW_MS)


def test_clients_neither_write_nor_receive_where_users_are_kept(bench: Bench) -> None:

    for check in (check_topic_name, require_receivable_topic):
        with pytest.raises(IllegalTopic):
            check("TW_SYS_AUTH")


def text(number: int) -> str:
    """Return the text of a token; each number gives another."""
    return text_of(number.to_bytes(ID_BYTES + SECRET_BYTES, "little"))


A, B = text(1), text(2)


@pytest.mark.parametrize("how", [Bench.flush, Bench.checkpoint], ids=["the log", "a snapshot"])
def test_tokens_are_there_again_after_a_start_and_none_that_was_revoked(
    bench: Bench, how: Callable[[Bench], object]
) -> None:
    for one in (A, B):
        bench.access.add_token("orders", one, 1_000, NOW_MS)
    bench.access.revoke_token(id_of(A), NOW_MS)
    how(bench)
    bench.open()
    with pytest.raises(Unauthorized, match="was revoked"):
        bench.access.find_token(A, NOW_MS)
    found = bench.access.find_token(B, NOW_MS)
    assert (found.user, found.digest, found.expires_ms) == ("orders", digest_of(B), NOW_MS + 1_000)
    assert bench.access.tokens() == [found]
    kept = repr(bench.access.freeze()) + repr(bytes(bench.disk.read(*segment(bench.disk))))
    assert B not in kept


def segment(disk: MemoryDisk) -> tuple[str, int, int]:
    """Return the log's only segment, whole."""
    [path] = [one for one in disk.list("commitlog") if not one.endswith(".new")]
    return f"commitlog/{path}", 0, disk.size(f"commitlog/{path}")


def test_a_token_is_void_when_it_expires_or_its_user_is_gone(bench: Bench) -> None:
    bench.access.add_token("orders", A, 1_000, NOW_MS)
    bench.access.add_token("orders", B, None, NOW_MS)
    assert bench.access.find_token(A, NOW_MS + 999).user == "orders"
    with pytest.raises(Unauthorized, match=f"Token {id_of(A)} of 'orders' has expired.*token add orders"):
        bench.access.find_token(A, NOW_MS + 1_000)
    known = bench.access.find_token(B, NOW_MS)
    bench.access.remove_user("orders", NOW_MS)
    bench.access.add_user("orders", "sealed", False, NOW_MS)
    with pytest.raises(Unauthorized, match="not known here"):
        bench.access.find_token(B, NOW_MS)
    with pytest.raises(Unauthorized, match="was revoked"):
        bench.access.check_token(known, NOW_MS)


def test_a_token_with_another_secret_is_unknown(bench: Bench) -> None:
    bench.access.add_token("orders", A, None, NOW_MS)
    for wrong in (A[:-1] + ("B" if A[-1] == "A" else "A"), B, "", "x" * 100_000):
        with pytest.raises(Unauthorized, match="token add USER"):
            bench.access.find_token(wrong, NOW_MS)


def test_a_token_that_cannot_be_is_refused_and_not_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOKENS_PER_USER_MAX", 1)
    monkeypatch.setattr(limits, "TOKEN_COUNT_MAX", 2)
    bench.access.add_token("orders", A, 1_000, NOW_MS)
    end_offset = bench.broker.end_offset
    with pytest.raises(UserNotFound):
        bench.access.add_token("nobody", B, None, NOW_MS)
    with pytest.raises(ClientMistake, match="has 1 tokens"):
        bench.access.add_token("orders", B, None, NOW_MS)
    with pytest.raises(TokenNotFound, match="token ls"):
        bench.access.revoke_token(id_of(B), NOW_MS)
    assert bench.broker.end_offset == end_offset
    bench.access.add_token("orders", B, None, NOW_MS + 1_000)
    assert [one.id for one in bench.access.tokens("orders")] == [id_of(B)], "the expired one has gone"
    bench.access.add_user("carts", "sealed", False, NOW_MS)
    bench.access.add_token("carts", A, None, NOW_MS)
    assert [one.user for one in bench.access.tokens()] == ["carts", "orders"]
    bench.access.add_user("third", "sealed", False, NOW_MS)
    with pytest.raises(ClientMistake, match="There are 2 tokens"):
        bench.access.add_token("third", text(3), None, NOW_MS)
    bench.access.revoke_token(id_of(B), NOW_MS)
    with pytest.raises(TokenNotFound):
        bench.access.revoke_token(id_of(B), NOW_MS)
