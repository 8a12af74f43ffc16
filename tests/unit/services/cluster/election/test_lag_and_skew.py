"""How far behind a node is, and how its clock differs: by what its reads have told."""

from __future__ import annotations

from services.cluster.election.lag_and_skew import LAG_QUERY_MS, OFF_MS, SAMPLES, LagAndSkew
from sharedlog.engine import Stored
from sharedlog.errors import EngineUnavailable

ENGINE_MS = 1_763_700_000_000


class Stage:
    """An engine's clock, and that of a node, which is `skew_ms` ahead."""

    def __init__(self, skew_ms: int = 0) -> None:
        self.now_ms, self.skew_ms, self.end, self.asked = 5_000, skew_ms, 0, 0
        self.lag_and_skew = LagAndSkew(lambda: ENGINE_MS + self.now_ms + self.skew_ms, lambda: self.now_ms)

    def read(self, *offsets: int, age_ms: int = 0) -> None:
        """Read records, the last of them `age_ms` old."""
        self.lag_and_skew.record_read(
            [Stored(one, b"", ENGINE_MS + self.now_ms - age_ms) for one in offsets], self._end
        )

    def _end(self) -> int:
        self.asked += 1
        if self.end < 0:
            raise EngineUnavailable("The engine is away.")
        return self.end

    def saw(self) -> tuple[int, int | None, int | None]:
        """Lag in records and in ms, and the skew."""
        view = self.lag_and_skew.view(leads=False)
        return view["lag_records"], view["lag_ms"], view["clock_skew_ms"]


def test_a_node_that_has_read_nothing_knows_nothing() -> None:
    assert Stage().saw() == (0, None, None)


def test_who_reads_old_records_is_behind_until_a_read_finds_no_more() -> None:
    stage = Stage()
    stage.end = 1_000
    stage.read(*range(100), age_ms=90_000)
    assert stage.saw() == (900, 90_000, None)
    stage.now_ms += 400
    assert stage.saw() == (900, 90_400, None), "an engine that does not answer leaves a node further behind"
    stage.read(*range(100, 1_000), age_ms=10)
    stage.read()
    assert stage.saw() == (0, 0, None)
    assert stage.lag_and_skew.view(leads=True)["lag_ms"] == 0


def test_the_end_is_asked_for_now_and_then_and_may_not_be_known() -> None:
    stage = Stage()
    for offset in range(20):
        stage.read(offset)
        stage.now_ms += LAG_QUERY_MS // 10
    assert stage.asked == 2
    stage.end = -1
    stage.now_ms += LAG_QUERY_MS
    stage.read(20)
    assert stage.asked == 3


def test_the_skew_is_the_least_difference_of_records_that_were_read_as_they_came() -> None:
    for skew_ms in (-3_000, 0, 3_000):
        stage = Stage(skew_ms)
        stage.read(0, age_ms=90_000)
        for age_ms in (40, 7, 55):
            stage.read()
            stage.read(1, age_ms=age_ms)
        assert stage.saw()[2] == skew_ms + 7


def test_a_clock_that_was_set_is_known_at_once() -> None:
    stage = Stage()
    stage.read()
    stage.read(1, age_ms=7)
    for skew_ms in (0, 60_000, -3_600_000):
        stage.skew_ms = skew_ms
        assert stage.saw()[2] == skew_ms + 7


def test_an_engine_whose_clock_was_set_is_known_after_some_records() -> None:
    stage = Stage()
    for behind_ms in (0, 60_000):
        for _ in range(SAMPLES):
            stage.read()
            stage.read(1, age_ms=behind_ms)
        assert stage.saw()[2] == behind_ms


def test_a_clock_is_off_from_2_seconds_on() -> None:
    stage = Stage()
    assert not stage.lag_and_skew.is_clock_skewed, "nothing is known"
    stage.read()
    stage.read(1)
    for skew_ms, is_clock_skewed in (
        (OFF_MS, False),
        (OFF_MS + 1, True),
        (-OFF_MS, False),
        (-OFF_MS - 1, True),
    ):
        stage.skew_ms = skew_ms
        assert stage.lag_and_skew.is_clock_skewed is is_clock_skewed
        assert stage.lag_and_skew.view(leads=False)["clock_is_off"] is is_clock_skewed


def test_a_leader_over_a_slow_engine_is_not_off() -> None:
    stage = Stage()
    for _ in range(SAMPLES):
        began_ms, appended_ms = stage.now_ms, ENGINE_MS + stage.now_ms + 9_000
        stage.now_ms += 30_000  # the answer took so long, and the engine took the record meanwhile
        stage.lag_and_skew.record_own_append(began_ms, [Stored(1, b"", appended_ms)])
    assert not stage.lag_and_skew.is_clock_skewed
    stage.skew_ms = 9_000 + OFF_MS + 1
    assert stage.lag_and_skew.is_clock_skewed, "so far ahead that no answer can have been so slow"
    stage.skew_ms = -21_000 - OFF_MS - 1
    assert stage.lag_and_skew.is_clock_skewed, "so far behind, too"


def test_appends_of_the_past_prove_nothing_about_who_follows() -> None:
    stage = Stage(OFF_MS + 1)
    stage.lag_and_skew.record_own_append(stage.now_ms - 10, [Stored(1, b"", ENGINE_MS + stage.now_ms)])
    assert not stage.lag_and_skew.is_clock_skewed
    stage.lag_and_skew.drop_append_bounds()
    assert stage.lag_and_skew.is_clock_skewed
