"""Prometheus metrics of a cluster node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.cluster.election.table import Role
from services.cluster.node import ClusterNode, monotonic_ms
from services.cluster.status import status_of
from services.cluster.watching.engine_check import EngineCheck
from services.cluster.watching.scrubbing import LogScrubber
from services.cluster.watching.sessions import SessionTrials
from services.cluster.watching.unanswered import EngineDiagnosis
from services.live.live_broker import LiveBroker
from services.live.progress import measure_with_pauses

REFRESH_INTERVAL_MS: Final = 2_000
"""Minimum time in milliseconds between two progress measurements. A measurement scans all message groups."""


class ClusterMetrics(Collector):
    """The Prometheus metrics of a node, and the additional fields of its status."""

    def __init__(
        self,
        node: ClusterNode,
        check: EngineCheck,
        unanswered: EngineDiagnosis,
        scrubbing: LogScrubber,
        sessions: SessionTrials,
    ) -> None:
        self._node, self._check, self._unanswered = node, check, unanswered
        self._scrubbing, self._sessions = scrubbing, sessions
        self.live: LiveBroker | None = None
        """This node's broker, or None if this node is not the leader."""
        self._refreshed_ms: int | None = None
        self._progress: dict[str, Any] | None = None

    @property
    def unanswered(self) -> str:
        """The reason why the shared log refuses calls or does not respond, or "" if it responds."""
        return self._unanswered.sentence or self._node.refusal

    def warnings(self) -> list[str]:
        """Return the warnings for the response to `/readyz`."""
        node = self._node
        clock, reopened = node.clocks.engine_clock_warning(), node.election.reopened
        own = [f"this node's copy was opened again, and is behind: {reopened}"] if reopened else []
        clocks = [clock] if clock else []
        of_log = [*node.broken_records, *self._scrubbing.sentences()]
        return [*own, *of_log, *self._sessions.sentences(), *clocks]

    def view(self) -> dict[str, Any]:
        """Return the additional status fields as a JSON-serializable dictionary."""
        unaccepted_bytes = 0 if self.live is None else self.live.unflushed_bytes()
        return {
            "unaccepted_bytes": unaccepted_bytes,
            "engine_trouble": self._check.trouble,
            "unanswered": self.unanswered,
            "scrub": self._scrubbing.view(),
            "engine_clock": self._node.clocks.engine_clock_warning(),
        } | self._sessions.view()

    async def progress(self) -> dict[str, Any]:
        """Return the status field `progress`, which is None unless this node leads with a working broker.

        Progress is measured at most once per REFRESH_INTERVAL_MS.
        """
        live, now_ms = self.live, monotonic_ms()
        if live is None or live.disk_failure is not None or live.broken.done():
            self._refreshed_ms, self._progress = None, None
        elif self._refreshed_ms is None or now_ms - self._refreshed_ms >= REFRESH_INTERVAL_MS:
            self._refreshed_ms = now_ms
            self._progress = (await measure_with_pauses(live.core, live.clock.now_ms())).to_json()
        return {"progress": self._progress}

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        role = GaugeMetricFamily("tidewheel_cluster_role", "1 for what the node does.", labels=("role",))
        for one in Role:
            role.add_metric((one.value,), int(one is self._node.role))
        yield role
        view = status_of(self._node)
        yield _gauge("epoch", "The newest epoch that the node has read of.", view["epoch"])
        yield _gauge("end_offset", "How far in the log the node has got.", view["end_offset"])
        takeovers = CounterMetricFamily("tidewheel_cluster_takeovers", "How often the node began to lead.")
        takeovers.add_metric((), view["takeovers"])
        yield takeovers
        yield from self._lag_metrics(view)
        yield from self._follower_metrics(view["followers"])
        foreign = "Lines in the shared log that no node of the cluster wrote."
        yield _gauge("foreign_lines", foreign, view["foreign_lines"])
        repeated = "Records that the shared log has twice, the second equal and stepped over."
        yield _gauge("repeated_records", repeated, view["repeated_records"])
        broken = "Records of the shared log that another node cannot read: its leader acknowledges nothing."
        yield _gauge("broken_records", broken, len(view["broken_records"]))
        yield _gauge("unanswered", "1 while the shared log gives no answer.", int(bool(self.unanswered)))
        trouble = "Settings of the shared log for which a leader refuses new messages."
        yield _gauge("engine_trouble", trouble, len(self._check.trouble))
        yield from self._scrub_metrics()
        refused = "1 while the engine opens no new session, for this node's user, with its password of now."
        yield _gauge("sessions_refused", refused, int(bool(self._sessions.refused)))
        clock = "1 where the engine's clock is off, and those of nodes agree."
        yield _gauge("engine_clock_off", clock, int(bool(self._node.clocks.engine_clock_warning())))
        unanswered = "How long a call to the shared log has waited; 0 for what is not worth a word."
        yield _gauge("engine_unanswered_seconds", unanswered, self._unanswered.seconds)

    def _lag_metrics(self, view: dict[str, Any]) -> Iterator[Metric]:
        """Yield metrics of the lag, the clock, the fitness to lead, and the most recent takeover."""
        yield _gauge(
            "lag_records", "Records of the shared log that the node has not read.", view["lag_records"]
        )
        for name, help_text, value in (
            ("lag_seconds", "How long ago was written what the node has read last.", view["lag_ms"]),
            ("clock_skew_seconds", "The node's clock less the engine's.", view["clock_skew_ms"]),
        ):
            if value is not None:
                yield _gauge(name, help_text, value / 1000)
        yield _gauge("clock_off", "1 where the clock is off by more than 2 s.", int(view["clock_is_off"]))
        beyond = "Accepted bytes that lie behind the node's newest checkpoint."
        if view["beyond_checkpoint_bytes"] is not None:
            yield _gauge("beyond_checkpoint_bytes", beyond, view["beyond_checkpoint_bytes"])
        unfit = "1 where the node leads only while no other can: its clock is off, or its disk has no room."
        yield _gauge("unfit", unfit, int(bool(view["unfit"])))
        unaccepted = "Bytes that the leader has appended and nobody has accepted."
        yield _gauge("unaccepted_bytes", unaccepted, self.view()["unaccepted_bytes"])
        if view["took_over"] is not None:
            last_takeover = GaugeMetricFamily(
                "tidewheel_cluster_last_takeover_timestamp_seconds",
                "When the node began to lead, the last time, and why.",
                labels=("why",),
            )
            last_takeover.add_metric((view["took_over"]["why"],), view["took_over"]["at_ms"] / 1000)
            yield last_takeover

    def _scrub_metrics(self) -> Iterator[Metric]:
        """Yield the number of log faults and the age of each scrub pass. Yield nothing on a follower."""
        if (found := self._scrubbing.view()) is None:
            return
        faults = "Places at which the shared log has lost, doubled or changed records."
        yield _gauge("log_faults", faults, len(found["faults"]))
        for kind, what in (("counted", "counted by their numbers"), ("read", "checked by their CRC")):
            help_text = f"How long ago all records of the shared log were {what}."
            yield _gauge(f"log_{kind}_age_seconds", help_text, found[f"{kind}_ms_ago"] / 1000)

    def _follower_metrics(self, lags: dict[str, dict[str, Any]]) -> Iterator[Metric]:
        """Yield the lag of each follower in bytes and in seconds. Yield no samples on a follower."""
        lag_bytes = GaugeMetricFamily(
            "tidewheel_cluster_follower_lag_bytes",
            "What the leader's log has and a follower has not, as far as it has told.",
            labels=("node",),
        )
        lag_seconds = GaugeMetricFamily(
            "tidewheel_cluster_follower_lag_seconds",
            "How long ago a follower, as far as it has told, had all that the leader has.",
            labels=("node",),
        )
        for node, lag in lags.items():
            lag_bytes.add_metric((node,), lag["lag_bytes"])
            lag_seconds.add_metric((node,), lag["lag_ms"] / 1000)
        yield lag_bytes
        yield lag_seconds

    def text(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tidewheel_cluster_{name}", help_text, value)
