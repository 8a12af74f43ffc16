"""Ten thousand halves that nobody ends, for a day of the broker's own clock: what they cost and hold up.

The core with a clock of its own, and retention. What a check writes is a counter:

    check record = 91 fixed + 12 topic + 20 CRC = 123 bytes    (`commitlog.records.record`, `TW_SYS_CHECK`)
    a day        = halves x checks of each x 123

with checks after the immunity, then after 10 s, 20 s, 40 s ... at most 5 minutes. No body is written again by
a check; a half goes once to a keep file when its segment is deleted, however long it waits.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import pytest

from commitlog import layout
from commitlog.log.recovery import LogScan
from commitlog.log.retention import RetentionPolicy
from commitlog.records.kinds import CHECK_TOPIC, RETENTION_TOPIC
from commitlog.records.message import Message
from commitlog.records.record import encode
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import (
    CheckBackRequest,
    Effect,
    HalfFilter,
    Resolution,
    RetireSegments,
    SendReceipt,
)
from tests.memory_disk import MemoryDisk
from tidewheel.property_names import CHECK_MS
from txn.checkback import CheckBackPolicy
from txn.half import check_record
from txn.states import State

START_MS = 1_763_700_000_000
MINUTE, DAY = 60_000, 86_400_000
SEGMENT_BYTES = 256 * 1024
BODY = b"paid" * 128
POLICY = CheckBackPolicy(count_max=10_000)
SETTINGS = BrokerSettings(
    segment_bytes=SEGMENT_BYTES,
    housekeeping_ms=MINUTE,
    check_back=POLICY,
    retention=RetentionPolicy(log_bytes_max=4 * SEGMENT_BYTES, group_pin_ms=0),
)
CHECK_BYTES = 91 + len(CHECK_TOPIC) + 20 + len(f"{CHECK_MS} {START_MS} ")
CHECKS_A_DAY = 6 + (86_400 - 316) // 300
"""After 6 s, then 10 s, 20 s, 40 s, 80 s and 160 s later, which makes 316 s, then every 300 s."""


@dataclass(slots=True)
class Shell:
    """A broker whose producers are asked and never know; the log is read as it becomes durable."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    now_ms: int = START_MS
    checks: int = 0
    written: Counter[str] = field(default_factory=Counter)
    bodies: int = 0
    followed: int = 0
    retired: int = 0
    broker: Broker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = Broker.open(self.disk, SETTINGS, self.now_ms)

    def send(self, count: int) -> list[SendReceipt]:
        """Sends halves, and leaves them alone."""
        receipts = []
        for number in range(count):
            half = Message(topic="t", body=BODY, message_id=f"M{number}", transactional=True)
            receipts.append(self.broker.sending.send(half, self.now_ms))
            if number % 1_000 == 999:
                self.flush()
        self.flush()
        return receipts

    def go_on_until(self, end_ms: int) -> None:
        """Lets time pass, event by event."""
        while (due_ms := self.broker.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._carry_out(self.broker.tick(self.now_ms))
            self.flush()
        self.now_ms = end_ms

    def flush(self) -> None:
        """Makes durable what was appended; a checkpoint is written when one is due."""
        while (flush := self.broker.take_flush()) is not None:
            flush.write()
            self._carry_out(self.broker.complete_flush(flush, self.now_ms))
            self._follow()
        if self.broker.is_checkpoint_due:
            checkpoint = self.broker.checkpoint(self.now_ms)
            checkpoint.write(self.disk)
            self.broker.complete_checkpoint(checkpoint)

    def restart(self) -> None:
        """Starts the broker anew from what is on disk."""
        self.broker = Broker.open(self.disk, SETTINGS, self.now_ms)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, CheckBackRequest):
                self.broker.transactions.complete_check_back(effect.transaction_id, True, self.now_ms)
                self.checks += 1
            elif isinstance(effect, RetireSegments):
                self.flush()
                effect.retirement.run(self.disk)
                self.broker.continue_retirement(effect.retirement, self.now_ms)
                self.retired += 1

    def _follow(self) -> None:
        for found in LogScan(self.disk, SEGMENT_BYTES, self.followed, self.broker.durable_offset):
            self.written[found.record.topic] += found.record_bytes
            self.bodies += found.record.body == BODY
        self.followed = self.broker.durable_offset


@pytest.fixture
def stuck_count(pytestconfig: pytest.Config) -> int:
    """How many halves are stuck: few in a quick run, the whole of it with `--rounds 50`."""
    return 10_000 if pytestconfig.getoption("--rounds") >= 50 else 100


def test_halves_that_are_stuck_for_a_day_cost_a_counter_a_check(stuck_count: int) -> None:
    shell = Shell()
    receipts = shell.send(stuck_count)
    stored, bodies = shell.written.copy(), shell.bodies
    shell.go_on_until(START_MS + DAY)

    assert shell.checks == stuck_count * CHECKS_A_DAY
    assert len(encode(check_record(1, 1, START_MS))) == CHECK_BYTES
    new = shell.written - stored
    assert new[CHECK_TOPIC] == shell.checks * CHECK_BYTES
    assert set(new) <= {CHECK_TOPIC, RETENTION_TOPIC}
    assert shell.bodies == bodies == stuck_count, "a body was written again"
    log_bytes = sum(shell.disk.size(f"commitlog/{name}") for name in shell.disk.list("commitlog"))
    kept_bytes = sum(shell.disk.size(f"keep/{name}") for name in shell.disk.list(layout.KEEP))
    figures = {
        "halves": stuck_count,
        "checks": shell.checks,
        "check_record_bytes": CHECK_BYTES,
        "check_bytes": new[CHECK_TOPIC],
        "other_bytes": sum(new.values()) - new[CHECK_TOPIC],
        "log_bytes_ever": shell.broker.durable_offset,
        "log_bytes_on_disk": log_bytes,
        "keep_bytes": kept_bytes,
        "segments_deleted": shell.broker._log.first_offset // SEGMENT_BYTES,
    }
    print(json.dumps(figures))
    assert log_bytes <= 5 * SEGMENT_BYTES + stored.total(), "retention frees nothing"
    assert receipts[-1].physical_offset < shell.broker._log.first_offset
    assert 0 < kept_bytes <= stored.total()

    shell.restart()
    assert shell.broker.gauges().open_halves == stuck_count
    page = shell.broker.half_views.page(HalfFilter(), None, 5).halves
    assert {(one.state, one.check_count) for one in page} == {(State.OPEN, CHECKS_A_DAY)}
    for number, receipt in enumerate(receipts):
        how = list(Resolution)[number % 2]
        shell.broker.transactions.end("t", receipt.transaction_id, receipt.message_id, how, shell.now_ms)
    shell.flush()
    assert shell.broker.gauges().open_halves == 0
    assert shell.bodies == bodies + stuck_count / 2, "a commit is its message, written once"
