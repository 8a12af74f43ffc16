"""The metrics that the pages name are those that the broker serves."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Desk = Any
AtDesk = Callable[..., None]

ROOT = Path(__file__).parents[4]
NOT_SERVED_HERE = {"mq_sys_wheel_timer", "mq_connections"}
"""A topic, and a metric that needs a protocol port (tests/unit/services/rpc/serving/test_serving.py)."""
OF_AN_AUDIT = "mq_audit_"
"""Served once an audit has run (tests/spark)."""


def test_every_metric_of_the_broker_that_a_page_names_is_served(at_desk: AtDesk) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {
        name for page in pages for name in re.findall(r"`(mq_[a-z_]+)", page.read_text())
    } - NOT_SERVED_HERE
    assert "mq_filter_waiting_messages" in named

    async def scenario(desk: Desk) -> None:
        text = (await desk.http.get("/metrics")).text
        served = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        assert {name for name in named if not name.startswith(OF_AN_AUDIT)} <= served

    at_desk(scenario)
