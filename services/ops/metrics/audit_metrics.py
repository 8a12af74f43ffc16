"""The Prometheus metrics of audits. Each scrape reads the newest run and the newest seal of a folder.

    mq_audit_cases{audit, kind}                       number of orders, or other findings, of each case
    mq_audit_balanced_ratio{audit}                    share of the orders that balance
    mq_audit_last_success_timestamp_seconds{audit}    time at which the newest run was written
    mq_audit_window_age_seconds{audit}                time since the end of the last sealed window

The label `audit` is the name of the folder, because Prometheus uses the label `job`. A run that failed is
visible only by an old `mq_audit_last_success_timestamp_seconds`. The metrics are served at `--metrics` of
`tidewheel audit schedule`, and every run writes the metrics to `<out>/audit.prom` for a node exporter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_jobs.cases.names import BALANCED
from spark_jobs.runs import Run, newest_run
from spark_jobs.seals.files import SealFolder

TEXT_FILE: Final = "audit.prom"


class AuditMetrics(Collector):
    """The gauges of a folder of runs, in a separate registry."""

    def __init__(self, out: Path) -> None:
        self._out, self._name = out, out.resolve().name
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current gauges, or none before the first run."""
        run = newest_run(self._out)
        if run is not None:
            yield self._cases(run)
            orders = run.orders_count
            balanced = run.summary["cases"].get(BALANCED, 0) / orders if orders else 1.0
            yield self._gauge("mq_audit_balanced_ratio", "Orders that balance, of all.", balanced)
            written = "When the newest audit was written."
            yield self._gauge("mq_audit_last_success_timestamp_seconds", written, run.written_ms / 1000)
        sealed_ms = SealFolder(self._out).newest_end_ms()
        if sealed_ms is not None:
            age = "How long ago the last sealed window ended."
            yield self._gauge("mq_audit_window_age_seconds", age, time.time() - sealed_ms / 1000)

    def write(self) -> None:
        """Write the gauges to the text file in the folder."""
        write_to_textfile(str(self._out / TEXT_FILE), self.registry)

    def _cases(self, run: Run) -> Metric:
        family = GaugeMetricFamily("mq_audit_cases", "Orders by case.", labels=("audit", "kind"))
        for case, count in (run.summary["cases"] | run.summary["others"]).items():
            family.add_metric((self._name, case), count)
        return family

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_text, labels=("audit",))
        family.add_metric((self._name,), value)
        return family
