"""Messages that POP consumers of RocketMQ (all clients of its gRPC protocol) held when their broker stopped.

RocketMQ moves a group's offset when it gives a message out, not when it is acknowledged. For each receive it
stores a checkpoint (tag `ck`), for each acknowledgement an `ack` or `bAck`, as timer messages to its revive
topic; when they arrive there, what a checkpoint names and no acknowledgement does is given out again. Their
bodies are JSON:

    all     t topic, c group, q queue id, so first queue offset, pt time of the receive, bn broker
    ck      n count, d distances of the offsets from so (empty: 0, 1, 2 ...), bm bits of those acknowledged
    ack     ao the acknowledged queue offset; bAck has a list of them, aol

A checkpoint is over when the revive group's offset has passed it in the revive topic. (RocketMQ
`PopCheckPoint`, `AckMsg`, `PopReviveService`.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from commitlog.records import properties
from commitlog.records.record import Record
from services.rocketmq.config_files import RocketmqConfig, parse_json
from tidewheel import property_names

REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
_REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_KINDS: Final = ("ck", "ack", "bAck")


class InHand(NamedTuple):
    """A message that a group's consumer held: which queue offset of which queue."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int


_Key = tuple[str, str, int, int, int, str]


class Receipts:
    """Takes the records of receipts as they come; memory: the receives that are not over."""

    def __init__(self, config: RocketmqConfig) -> None:
        self._config = config
        self._held: dict[_Key, set[int]] = {}
        self._acknowledged: defaultdict[_Key, set[int]] = defaultdict(set)

    def take(self, record: Record) -> None:
        """Take a record of the revive topic, or a timer record on its way there; ignores any other."""
        kind = properties.value_of(record.properties, property_names.TAG)
        if kind not in _KINDS:
            return
        try:
            receipt = parse_json(record.body.decode())
            key = tuple(receipt[name] for name in ("t", "c", "q", "so", "pt", "bn"))
            offsets = _held(receipt) if kind == "ck" else set(receipt.get("aol") or [receipt["ao"]])
        except (ValueError, KeyError, TypeError):
            self._config.notes.append(f"The receipt at log offset {record.physical_offset} cannot be read.")
            return
        if kind != "ck":
            self._acknowledged[key] |= offsets
        elif self._is_over(record):
            self._held.pop(key, None)
        else:
            self._held[key] = offsets

    def in_hand(self) -> Iterator[InHand]:
        """Yield what was given out and neither acknowledged nor given out again."""
        for key, offsets in self._held.items():
            topic, group, queue_id = key[:3]
            for queue_offset in sorted(offsets - self._acknowledged.get(key, set())):
                yield InHand(group, topic, queue_id, queue_offset)

    def _is_over(self, record: Record) -> bool:
        if not record.topic.startswith(REVIVE_PREFIX):
            return False
        offsets = self._config.group_offsets.get((record.topic, _REVIVE_GROUP), {})
        return record.queue_offset < offsets.get(record.queue_id, 0)


def _held(receipt: dict[str, Any]) -> set[int]:
    """Return the offsets that a checkpoint names and does not itself call acknowledged."""
    distances = receipt.get("d") or range(int(receipt["n"]))
    done = int(receipt.get("bm", 0))
    return {int(receipt["so"]) + distance for bit, distance in enumerate(distances) if not done >> bit & 1}
