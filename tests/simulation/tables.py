"""Every durable table of a broker as plain values, which are equal for two cores with the same records.

A table is a part of the state or, if that has members, one of them: `timers.pending`. Tables are the parts of
a snapshot, and the contents of the other files: the pending timers and their due times, their names and ends,
the keys by hash, and the queues with their ends. Lists of rows are sorted, since their order is irrelevant.
`timers.deviating` is excluded: the slot of a late timer depends on the clock of the core that set it. Names
and ends older than the history may be present or not, so they are excluded: for two cores with different
histories, those older than the shorter one. The age is that of the last event (`timer_ends.last_ms`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from commitlog.snapshots.deferred_rows import DeferredRows
from commitlog.snapshots.snapshot import Rows, RowsByName
from consumequeue.indexes.timerindex import FactIndex
from consumequeue.indexes.timerindex_fact import FACT, Facts, newest_of
from consumequeue.runs.run_store import RunStore
from services.broker.broker import Broker
from services.broker.timers.timer_ends import Times, last_ms
from services.broker.timers.timer_records import due_ms_of

_FOREVER_MS: Final = 1 << 62


def tables(broker: Broker, history_ms: int | None = None) -> dict[str, Any]:
    """Return all tables of a quiet broker, by name; `history_ms` defaults to the broker's history."""
    now_ms = broker.store.last_store_ms
    kept_ms = now_ms - (broker.timers.ends._history_ms if history_ms is None else history_ms)
    found: dict[str, Any] = {}
    for name, part in broker._parts.items():
        frozen = part.freeze()
        members = (
            {f"{name}.{key}": value for key, value in frozen.items()} if isinstance(frozen, dict) else {}
        )
        found |= members or {name: frozen}
    timers = broker.timers
    del found["timers.deviating"]
    places = [
        (int(row["due_ms"]), int(row["timer_offset"]))
        for rows, _ in timers.partitions.scan(0, _FOREVER_MS)
        for row in rows
    ]
    found["timers.waiting"] = [
        (due_ms_of(timers.read_at(*place)) if place[1] in timers.near.deviating else place[0], place[1])
        for place in places
    ]
    names, ends = _facts(timers.ends.names), _facts(timers.ends.ends)
    # No merge may have dropped the end of a timer with a name within the history.
    names = _kept(names, last_ms(names), kept_ms)
    found["timers.names"] = names.tolist()
    found["timers.named as pending"] = names["offset"][~np.isin(names["offset"], ends["key"])].tolist()
    found["timers.ends"] = _kept(ends, last_ms(ends), kept_ms).tolist()
    found["keys"] = _keys(broker)
    found["queues"] = [
        (topic, queue_id, queue.min_offset, queue.end_offset)
        for topic, queue_id, queue in broker.store.dispatch.queues()
    ]
    return {name: _plain(value) for name, value in found.items()}


def _facts(index: FactIndex) -> Facts:
    """Return the newest fact about each name or timer."""
    return newest_of(np.concatenate([np.empty(0, FACT), *_chunks(index)]))


def _kept(facts: Facts, known_ms: Times, kept_ms: int) -> Facts:
    """Return the facts whose time in `known_ms` is not before `kept_ms`."""
    return facts[known_ms >= np.uint64(max(kept_ms, 0))]


def _keys(broker: Broker) -> list[Any]:
    """Return the entries of the key index for records in the log."""
    entries = [pair for chunk in _chunks(broker.store.keys) for pair in chunk.tolist()]
    return [pair for pair in entries if pair[1] >= broker.store.log.first_offset]


def _chunks(index: RunStore[Any]) -> Iterator[Any]:
    for source in (
        *(run.chunks(index._disk) for run in index.runs),
        *(one.chunks() for one in index.recents()),
    ):
        yield from source


def _plain(value: Any) -> Any:
    """Return a table with its rows sorted."""
    if isinstance(value, (dict, RowsByName)):
        return sorted((str(key), _plain(one)) for key, one in value.items())
    if isinstance(value, (list, tuple, Rows, DeferredRows)):
        return sorted(map(_inside, value), key=repr)
    return value


def _inside(value: Any) -> Any:
    """Return a row, with its columns in order."""
    if isinstance(value, dict):
        return sorted((str(key), _inside(one)) for key, one in value.items())
    return [_inside(one) for one in value] if isinstance(value, (list, tuple)) else value
