"""What Prometheus scrapes of a node, whether it leads or follows."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.cluster.engine_check import EngineCheck
from services.cluster.node import ClusterNode, Role


class ClusterMetrics(Collector):
    """The families of one node."""

    def __init__(self, node: ClusterNode, check: EngineCheck) -> None:
        self._node, self._check = node, check

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        role = GaugeMetricFamily("tidewheel_cluster_role", "1 for what the node does.", labels=("role",))
        for one in Role:
            role.add_metric((one.value,), int(one is self._node.role))
        yield role
        view = self._node.view()
        yield _gauge("epoch", "The newest epoch that the node has read of.", view["epoch"])
        yield _gauge("end_offset", "How far in the log the node has got.", view["end_offset"])
        takeovers = CounterMetricFamily("tidewheel_cluster_takeovers", "How often the node began to lead.")
        takeovers.add_metric((), view["takeovers"])
        yield takeovers
        trouble = "Settings of the shared log for which a leader refuses new messages."
        yield _gauge("engine_trouble", trouble, len(self._check.trouble))

    def text(self) -> bytes:
        """Return them as Prometheus reads them."""
        return generate_latest(self)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tidewheel_cluster_{name}", help_text, value)
