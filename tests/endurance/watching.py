"""What the clients of `sick_load` call and are told, noted for the checker (`tests/checker`)."""

from __future__ import annotations

import time
from typing import Any, Final

from services.rpc.generated import definition_pb2 as wire
from tests.history_file import HistoryFile, content_hash

KINDS: Final = {
    wire.MessageType.NORMAL: "plain",
    wire.MessageType.FIFO: "fifo",
    wire.MessageType.DELAY: "delayed",
    wire.MessageType.TRANSACTION: "half",
}
OUTCOMES: Final = {"ok": "ok", "refused": "fail", "unknown": "unknown"}


class Watcher:
    """Notes calls by their requests; what a receipt stands for it remembers from the answer before."""

    def __init__(self, file: HistoryFile | None = None) -> None:
        self.file = file or HistoryFile()
        self._places: dict[str, tuple[int, int]] = {}
        """Queue and queue offset, by receipt handle."""
        self._recalled: dict[str, str] = {}
        """Message ids by recall handle."""

    def begin(self, process: str, name: str, request: Any) -> int:
        """Note that a call begins; return its number."""
        verb, fields = {
            "SendMessage": self._send,
            "AckMessage": self._ack,
            "RecallMessage": self._recall,
            "EndTransaction": self._end_half,
        }[name](request)
        return self.file.invoke(process, _now_ms(), verb, **fields)

    def end(self, call: int, outcome: str, answer: Any) -> None:
        """Note what came of a call."""
        told: dict[str, Any] = {}
        if outcome == "ok" and hasattr(answer, "entries") and answer.entries:
            entry = answer.entries[0]
            if handle := getattr(entry, "recall_handle", ""):
                self._recalled[handle] = entry.message_id
            if hasattr(entry, "offset"):
                told = {"queue_offset": entry.offset}
        self.file.end(call, OUTCOMES[outcome], _now_ms(), **told)

    def receives(self, process: str, request: Any) -> int:
        """Note that a receive begins; return its number."""
        topic, group = request.message_queue.topic.name, request.group.name
        return self.file.invoke(process, _now_ms(), "receive", topic=topic, group=group)

    def saw(self, call: int, message: Any) -> None:
        """Note a message that a receive gives out."""
        system = message.system_properties
        place = system.queue_id, system.queue_offset
        self._places[system.receipt_handle] = place
        self.file.saw(call, _now_ms(), system.message_id, *place, system.delivery_attempt)

    def received(self, call: int) -> None:
        """Note that a receive has ended; what it gave out was noted before."""
        self.file.end(call, "ok", _now_ms())

    def _send(self, request: Any) -> tuple[str, dict[str, Any]]:
        message = request.messages[0]
        system = message.system_properties
        due_ms = system.delivery_timestamp.ToMilliseconds() if system.HasField("delivery_timestamp") else 0
        return "send", {
            "kind": KINDS[system.message_type],
            "id": system.message_id,
            "topic": message.topic.name,
            "hash": content_hash(message.body),
            "line": system.message_group,
            "due_ms": due_ms,
        }

    def _ack(self, request: Any) -> tuple[str, dict[str, Any]]:
        entry = request.entries[0]
        queue, offset = self._places[entry.receipt_handle]
        fields = {"id": entry.message_id, "topic": request.topic.name, "group": request.group.name}
        return "ack", fields | {"queue": queue, "offset": offset}

    def _recall(self, request: Any) -> tuple[str, dict[str, Any]]:
        return "recall", {"id": self._recalled[request.recall_handle], "topic": request.topic.name}

    def _end_half(self, request: Any) -> tuple[str, dict[str, Any]]:
        is_commit = request.resolution == wire.TransactionResolution.COMMIT
        fields = {"id": request.message_id, "topic": request.topic.name}
        return "end", fields | {"resolution": "commit" if is_commit else "rollback"}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
