"""Stores the latest metrics of each client, and the sums of the metrics per topic and group.

    client report   --> newest series (`of`), while the client is connected
                   `--> increase is added to the sums (`sums`), which are kept after the client disconnects

A client reports totals since its start, so the increase is the difference between two successive reports. The
first report of a series that began before the start of this process adds 0, because an earlier process has
already counted it. The last report of a departed client is kept, within the series limit, so that a returning
client is not counted twice. The final report of a disconnecting client is also counted.

Only the six metrics of the official clients are stored. At most `CLIENT_SERIES_EACH_MAX` series per client
and `CLIENT_SERIES_MAX` series in total are stored. The series of departed clients are evicted first.
Histograms use the bucket bounds in `BOUNDS_MS`. The count of a bucket with another bound is added to the
bucket with the next larger bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Final, NamedTuple

from commitlog.limits import CLIENT_SERIES_EACH_MAX, CLIENT_SERIES_MAX

BUCKETS_MAX: Final = 64
NUMBER_MAX: Final = 1e15
"""Largest accepted measurement. The limit ensures that the sums remain finite."""
BOUNDS_MS: Final[Mapping[str, tuple[float, ...]]] = {
    "rocketmq_send_cost_time": (1, 5, 10, 20, 50, 200, 500),
    "rocketmq_delivery_latency": (1, 5, 10, 20, 50, 200, 500),
    "rocketmq_await_time": (1, 5, 20, 100, 1_000, 5_000, 10_000),
    "rocketmq_process_time": (1, 5, 10, 100, 1_000, 10_000, 60_000),
}
"""The duration metrics, with the bucket bounds of the official clients in milliseconds."""
GAUGES: Final = ("rocketmq_consumer_cached_messages", "rocketmq_consumer_cached_bytes")


class Key(NamedTuple):
    """The identity of a series.

    `topic` and `group` are stored names, which include the namespace. `status` is "success", "failure", or
    empty.
    """

    name: str
    topic: str
    group: str = ""
    status: str = ""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A duration histogram with one count per bound in `BOUNDS_MS` and one count for longer durations."""

    counts: tuple[int, ...]
    total_ms: float

    @property
    def count(self) -> int:
        """Return the total number of measurements."""
        return sum(self.counts)


Value = float | Histogram
Series = dict[Key, Value]


class ReportedSeries(NamedTuple):
    """A series in a client report.

    `began_ms` is the wall-clock time at which the value was 0, or 0 if that time is unknown. If `is_new` is
    true, `value` is the increase since the previous report.
    """

    key: Key
    value: Value
    began_ms: int = 0
    is_new: bool = False


class ClientMetrics:
    """The latest report of each client, and the sums of all reports since `since_ms`."""

    def __init__(self, since_ms: int = 0) -> None:
        self._since_ms = since_ms
        self._there: dict[str, Series] = {}
        self._departed: dict[str, Series] = {}
        self._sums: dict[Key, Histogram] = {}
        self._kept = 0

    def report(self, client_id: str, reported: Sequence[ReportedSeries], *, is_there: bool = True) -> int:
        """Store a complete report of a client. Return the number of accepted series.

        If `is_there` is false, the client is disconnecting.
        """
        series = self._there.get(client_id)
        if series is None:
            series = self._departed.pop(client_id, {})
        if is_there:
            self._there[client_id] = series
        else:
            reported = [one for one in reported if one.key.name not in GAUGES]
        now = {one.key for one in reported}
        self._drop_series(series, [key for key in series if key.name in GAUGES and key not in now])
        taken = sum(self._store_series(series, one) for one in reported)
        if series and not is_there:
            self._departed[client_id] = series  # If inserted earlier, the report could be evicted.
        return taken

    def of(self, client_id: str) -> Mapping[Key, Value]:
        """Return the latest report of a client, or an empty mapping if the client is not connected."""
        return self._there.get(client_id, {})

    def retain_last_report(self, client_id: str) -> None:
        """Keep the last report of a departed client, for comparison with its next report."""
        series = self._there.pop(client_id, None)
        if series:
            self._drop_series(series, [key for key in series if key.name in GAUGES])
            self._departed[client_id] = series

    def sums(self) -> Mapping[Key, Histogram]:
        """Return the sums of the duration histograms of all clients."""
        return self._sums

    def gauges(self) -> Counter[Key]:
        """Return the sums of the gauges of all connected clients."""
        found: Counter[Key] = Counter()
        for series in self._there.values():
            for key, value in series.items():
                if not isinstance(value, Histogram):
                    found[key] += value  # type: ignore[assignment] # A Counter can also contain floats.
        return found

    def _store_series(self, series: Series, one: ReportedSeries) -> bool:
        if one.key not in series:
            if len(series) >= CLIENT_SERIES_EACH_MAX or not self._make_room():
                return False
            self._kept += 1
        if isinstance(one.value, Histogram):
            self._add_histogram(series, one, one.value)
        else:
            series[one.key] = one.value
        return True

    def _add_histogram(self, series: Series, one: ReportedSeries, told: Histogram) -> None:
        before = series.get(one.key)
        assert not isinstance(before, float), "a distribution was a gauge before"
        series[one.key] = add_histograms(before, told) if one.is_new else told
        is_of_before_us = before is None and not one.is_new and 0 < one.began_ms < self._since_ms
        if not is_of_before_us and (one.key in self._sums or len(self._sums) < CLIENT_SERIES_MAX):
            new = told if one.is_new else subtract_histogram(before, told)
            self._sums[one.key] = add_histograms(self._sums.get(one.key), new)

    def _make_room(self) -> bool:
        while self._kept >= CLIENT_SERIES_MAX and self._departed:
            self._kept -= len(self._departed.pop(next(iter(self._departed))))
        return self._kept < CLIENT_SERIES_MAX

    def _drop_series(self, series: Series, keys: Iterable[Key]) -> None:
        for key in keys:
            del series[key]
            self._kept -= 1


def add_histograms(one: Histogram | None, other: Histogram) -> Histogram:
    """Return the sum of two histograms."""
    if one is None:
        return other
    return Histogram(tuple(map(add, one.counts, other.counts)), one.total_ms + other.total_ms)


def subtract_histogram(before: Histogram | None, now: Histogram) -> Histogram:
    """Return the increase from `before` to `now`, or return `now` if the client has restarted."""
    if before is None or any(was > is_ for was, is_ in zip(before.counts, now.counts, strict=True)):
        return now
    return Histogram(tuple(map(sub, now.counts, before.counts)), max(0.0, now.total_ms - before.total_ms))


def convert_histogram(
    name: str, bounds: Sequence[float], counts: Sequence[int], total_ms: float
) -> Histogram | None:
    """Convert the bucket counts of a client to the bucket bounds in `BOUNDS_MS`.

    Return None if the counts or the total are invalid.
    """
    ours = BOUNDS_MS[name]
    is_sound = len(counts) == len(bounds) + 1 <= BUCKETS_MAX and 0 <= total_ms <= NUMBER_MAX
    if not is_sound or any(count < 0 for count in counts):
        return None
    held = [0] * (len(ours) + 1)
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        held[bisect_left(ours, bound)] += count
    return Histogram(tuple(held), total_ms)


def quantile_bound_ms(name: str, histogram: Histogram, part: float) -> float | None:
    """Return the upper bound in milliseconds of the bucket that contains a quantile.

    `part` is the quantile, from 0 to 1. Return None if the quantile is greater than the largest bound.
    """
    wanted = part * histogram.count
    for bound, reached in zip(BOUNDS_MS[name], cumulate_counts(histogram.counts), strict=False):
        if reached >= wanted:
            return bound
    return None


def cumulate_counts(counts: Iterable[int]) -> Iterator[int]:
    """Yield the cumulative sum after each element of `counts`."""
    reached = 0
    for count in counts:
        reached += count
        yield reached
