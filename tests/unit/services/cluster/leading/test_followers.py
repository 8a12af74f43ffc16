"""How far behind each follower is: true, and never a zero of which nobody has heard."""

from __future__ import annotations

from services.cluster.leading.followers import FRESH_MS, Followers, secret_of
from sharedlog.fold import Fold
from sharedlog.holdings import Holding

HELD = {"a": Holding(9, 900), "b": Holding(5, 600), "c": Holding(0)}


class Stage:
    """A leader, `a`, that begins at byte 1,000 at second 1, and a clock."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.followers = Followers(1_000, lambda: self.now_ms)

    def at(self, now_ms: int, end: int | None = None, **told: int) -> None:
        """Let it be later; the leader's end moves, and then followers tell theirs."""
        self.now_ms = now_ms
        if end is not None:
            self.followers.record_end(end)
        for node, its_end in told.items():
            self.followers.record_report(node, its_end, "")

    def lags(self, node: str) -> tuple[int, int]:
        """How far a node is behind, in bytes and ms."""
        found = self.followers.view(HELD, "a")[node]
        return found["lag_bytes"], found["lag_ms"]


def test_who_has_told_nothing_is_behind_by_what_its_copy_lacks_and_since_the_leader_began() -> None:
    stage = Stage()
    assert stage.lags("b") == (400, 0)
    stage.at(3_500, end=1_200)
    assert (stage.lags("b"), stage.lags("c")) == ((600, 2_500), (1_200, 2_500))
    view = stage.followers.view(HELD, "a")
    assert view.keys() == {"b", "c"}
    assert view["b"]["heard_ms_ago"] is None


def test_who_keeps_up_is_behind_by_nothing_and_who_is_gone_by_more_and_more() -> None:
    stage = Stage()
    stage.at(2_000, end=1_500, b=1_500)
    assert stage.lags("b") == (0, 0)
    stage.at(2_900)
    assert stage.lags("b") == (0, 900), "the leader is idle, and the follower was not heard of"
    stage.at(3_000, b=1_500)
    assert stage.lags("b") == (0, 0)
    stage.at(60_000, end=9_000)
    assert stage.lags("b") == (7_500, 57_000)


def test_who_is_slow_is_behind_since_what_it_lacks_was_written() -> None:
    stage = Stage()
    stage.at(2_000, end=2_000)
    stage.at(3_000, end=3_000)
    stage.at(4_000, end=4_000, b=2_500)
    assert stage.lags("b") == (1_500, 1_000), "it has had all until the third second"
    stage.at(5_000, b=1_000)
    assert stage.lags("b") == (3_000, 3_000), "it began anew: what it told last counts"
    stage.at(6_000, b=4_000)
    assert stage.lags("b") == (0, 0)


def test_moves_that_come_fast_are_marked_as_of_the_first_of_them() -> None:
    stage = Stage()
    for number in range(1, 100):
        stage.at(2_000 + number, end=1_000 + number)
    stage.at(5_000, b=1_050)
    assert stage.lags("b") == (49, 2_999)
    assert len(stage.followers._ends) == 2


def test_the_secret_is_another_one_in_each_epoch() -> None:
    one, other = Fold(bytes(16)), Fold(bytes(16))
    other.holder = b"another attempt!"
    assert secret_of(one) != secret_of(other)
    assert other.holder.hex() not in secret_of(other)


def test_the_follower_that_is_least_behind_of_those_that_are_fit_is_named() -> None:
    stage = Stage()
    assert stage.followers.fittest_follower() == ""
    for node, end, unfit in (
        ("b", 900, ""),
        ("c", 950, ""),
        ("d", 1_000, "its clock is off"),
        ("e", 1_000, None),
    ):
        stage.followers.record_report(node, end, unfit)
    assert stage.followers.fittest_follower() == "c"
    stage.at(1_000 + FRESH_MS, b=900)
    assert stage.followers.fittest_follower() == "c"
    stage.at(1_001 + FRESH_MS)
    assert stage.followers.fittest_follower() == "b", "c may be gone"
