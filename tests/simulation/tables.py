"""Every durable table of a broker as plain values: what two cores that saw the same records must agree on.

A table is a part of the state or, where that has members, one of them: `timers.pending`. What a snapshot
keeps of each part is there, and what lies in files beside it: the timers that wait with their places, and the
queues with their ends. Lists of rows are sorted; order is no part of a table.
"""

from __future__ import annotations

from typing import Any, Final

from services.broker.broker import Broker

_FOREVER_MS: Final = 1 << 62


def tables(broker: Broker) -> dict[str, Any]:
    """All tables of a broker that is quiet, by name."""
    found: dict[str, Any] = {}
    for name, part in broker._parts.items():
        frozen = part.freeze()
        members = (
            {f"{name}.{key}": value for key, value in frozen.items()} if isinstance(frozen, dict) else {}
        )
        found |= members or {name: frozen}
    found["timers.waiting"] = [
        (int(row["due_ms"]), int(row["timer_offset"]))
        for rows, _ in broker._timers.partitions.scan(0, _FOREVER_MS)
        for row in rows
    ]
    found["queues"] = [
        (topic, queue_id, queue.min_offset, queue.next_offset)
        for topic, queue_id, queue in broker._store.dispatch.queues()
    ]
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """Rows of a table in an order that does not depend on how they came."""
    if isinstance(value, dict):
        return sorted((str(key), _plain(one)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return sorted(map(_inside, value), key=repr)
    return value


def _inside(value: Any) -> Any:
    """A row: its columns keep their places."""
    if isinstance(value, dict):
        return sorted((str(key), _inside(one)) for key, one in value.items())
    return [_inside(one) for one in value] if isinstance(value, (list, tuple)) else value
