"""Stores that an older version wrote, stopped or killed, open with all that they held, and are proved sound.

`tests/stores/make.py` made them with that version, which also told what they hold.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog import store_format
from commitlog.real_disk import RealDisk
from services.broker.broker import Broker
from services.store.opening import look_at
from services.store.verify import verify
from tests.stores.make import SETTINGS, held

STORES = Path(__file__).parents[3] / "stores"
VERSIONS = ["102b719"]


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_store_opens_with_all_that_it_held(version: str, end: str, tmp_path: Path) -> None:
    with tarfile.open(STORES / f"{version}-{end}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    told: dict[str, Any] = json.loads((STORES / f"{version}.json").read_text())[end]
    now_ms = told.pop("now_ms")
    disk = RealDisk(tmp_path / "store")
    broker = Broker.open(disk, SETTINGS, now_ms)
    assert json.loads(json.dumps(held(as_before(broker), now_ms))) == told
    found = store_format.read(disk)
    assert found is not None
    assert found.version == store_format.VERSION
    checkpoint = broker.checkpoint(now_ms)
    checkpoint.write(disk)
    again = Broker.open(disk, SETTINGS, now_ms)
    assert json.loads(json.dumps(held(as_before(again), now_ms))) == told
    assert not verify(look_at(disk, "the store"), now_ms).findings


def as_before(broker: Broker) -> SimpleNamespace:
    """The verbs that `held` asks, by the names that the older version had for them."""
    return SimpleNamespace(
        topics=broker.topics.all,
        read=broker.finding.read,
        queue_range=broker.finding.queue_range,
        timers=broker.timer_views.page,
        timer=broker.timers.get,
        halves=broker.half_views.page,
        half=broker.half_views.one,
        groups=lambda now_ms: broker.group_views.all(),
        dead_letters=broker.dead_letters.page,
        schedules=broker.schedules.page,
        access=broker.access,
    )
