"""Percentiles of latencies, in milliseconds."""

from __future__ import annotations

import statistics


def figures(values: list[float]) -> dict[str, float]:
    """Return count, percentiles (p50, p99, p99.9), maximum, and the number of negative values (`early`)."""
    cuts = statistics.quantiles(values, n=1000, method="inclusive")
    return {
        "count": len(values),
        "p50_ms": round(cuts[499], 2),
        "p99_ms": round(cuts[989], 2),
        "p999_ms": round(cuts[998], 2),
        "max_ms": round(max(values), 2),
        "early": sum(value < 0 for value in values),
    }
