"""Stores that an older version wrote, stopped or killed, open with all that they held, and are proved sound.

`tests/stores/make.py` made them with that version, which also told what they hold.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from commitlog import store_format
from commitlog.real_disk import RealDisk
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from services.broker.values import HalfFilter, TimerFilter, TimerName, TimerVerdict
from services.store.opening import look_at
from services.store.verify import verify
from txn.checkback import CheckBackPolicy

STORES = Path(__file__).parents[3] / "stores"
VERSIONS = ["102b719"]
SETTINGS = BrokerSettings(
    segment_bytes=1 << 15, check_back=CheckBackPolicy(immunity_ms=1_000, interval_ms=1_000, count_max=2)
)
"""As `make.py` has them, which imports what its version had."""
NAMES = [*(f"deadline-{number}" for number in range(8)), "soon"]


def held(broker: Broker, now_ms: int) -> dict[str, Any]:
    """What a store holds, as `make.py` writes it down."""
    topics = [[one.name, one.message_type.value, one.queue_count] for one in broker.topics.all()]
    queues = [(name, queue_id) for name, _, count in topics for queue_id in range(count)]
    timers = broker.timer_views.page(TimerFilter(), None, 1_000).timers
    found = [broker.timers.get(TimerName("orders", key=name), now_ms) for name in NAMES]
    halves = broker.half_views.page(HalfFilter(), None, 100).halves
    groups = broker.group_views.all()
    shown = {
        "topics": topics,
        "messages": {f"{name}:{queue_id}": ids(broker, name, queue_id) for name, queue_id in queues},
        "timers": [[one.message_id, one.due_ms] for one in timers],
        "verdicts": [one.verdict.value if isinstance(one, TimerVerdict) else None for one in found],
        "halves": [
            [one.transaction_id, one.state.value, one.check_count, one.next_check_ms] for one in halves
        ],
        "ended": [broker.half_views.one(one.transaction_id).state.value for one in halves],
        "groups": [
            [
                view.name,
                sorted(
                    [one.topic, one.queue_id, one.committed_offset, one.done_above] for one in view.queues
                ),
            ]
            for view in groups
        ],
        "letters": [
            one.message.message_id for one in broker.dead_letters.page("mail", None, 100).dead_letters
        ],
        "schedules": [
            [one.schedule.name, one.state.value, one.last_ms, one.sent_count]
            for one in broker.schedules.page()
        ],
        "users": [[one.name, one.sealed] for one in broker.access.users()],
        "rules": [[rule.user, rule.pattern, rule.effect.value] for rule in broker.access.rights],
    }
    plain: dict[str, Any] = json.loads(json.dumps(shown))
    return plain


def ids(broker: Broker, topic: str, queue_id: int) -> list[str]:
    first, _ = broker.finding.queue_range(topic, queue_id)
    return [one.message.message_id for one in broker.finding.read(topic, queue_id, first, 1_000)]


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_store_opens_with_all_that_it_held(version: str, end: str, tmp_path: Path) -> None:
    with tarfile.open(STORES / f"{version}-{end}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    told: dict[str, Any] = json.loads((STORES / f"{version}.json").read_text())[end]
    now_ms = told.pop("now_ms")
    disk = RealDisk(tmp_path / "store")
    broker = Broker.open(disk, SETTINGS, now_ms)
    assert held(broker, now_ms) == told
    found = store_format.read(disk)
    assert found is not None
    assert found.version == store_format.VERSION - 1
    checkpoint = broker.checkpoint(now_ms)
    checkpoint.write(disk)
    found = store_format.read(disk)
    assert found is not None
    assert found.version == store_format.VERSION
    again = Broker.open(disk, SETTINGS, now_ms)
    assert held(again, now_ms) == told
    assert not verify(look_at(disk, "the store"), now_ms).findings
