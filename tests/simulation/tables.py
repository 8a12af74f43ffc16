"""Every durable table of a broker as plain values: what two cores that saw the same records must agree on.

A table is a part of the state or, where that has members, one of them: `timers.pending`. What a snapshot
keeps of each part is there, and what lies in files beside it: the timers that wait and when they are due,
their names and ends, the keys by hash, and the queues with their ends. Lists of rows are sorted; order is no
part of a table. Left out is `timers.deviating`: where a late timer waits follows the clock of the core that
put it there. Names and ends that are over for the history may be there or not, so they are left out: of two
cores with different histories, what is over for the shorter one.

Files that the release before may read hold an end with a time of the core's own history in the place of when
its timer was due (`services.broker.timers.timer_ends`). Where there may be such files, that time is left out,
and ends of timers that ended before the history, for a file does not tell which of them are over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from commitlog.deferred_rows import DeferredRows
from commitlog.snapshot import Rows, RowsByName
from consumequeue.run_store import RunStore
from consumequeue.timerindex import FactIndex
from consumequeue.timerindex_fact import FACT, Facts, newest_of
from services.broker.broker import Broker
from services.broker.timers.timer_ends import Times, last_ms
from services.broker.timers.timer_records import due_ms_of

_FOREVER_MS: Final = 1 << 62


def tables(broker: Broker, history_ms: int | None = None) -> dict[str, Any]:
    """All tables of a broker that is quiet, by name; with the broker's own history unless one is given."""
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
    # No merge may have dropped the end of a timer that has a name which is not over.
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
    """The newest fact about each name or timer."""
    return newest_of(np.concatenate([np.empty(0, FACT), *_chunks(index)]))


def _kept(facts: Facts, known_ms: Times, kept_ms: int) -> Facts:
    """The facts but for those that were over before `kept_ms`."""
    return facts[known_ms >= np.uint64(max(kept_ms, 0))]


def _keys(broker: Broker) -> list[Any]:
    """The entries of the key index that are in the log."""
    entries = [pair for chunk in _chunks(broker.store.keys) for pair in chunk.tolist()]
    return [pair for pair in entries if pair[1] >= broker.store.log.first_offset]


def _chunks(index: RunStore[Any]) -> Iterator[Any]:
    for source in (
        *(run.chunks(index._disk) for run in index.runs),
        *(one.chunks() for one in index.recents()),
    ):
        yield from source


def _plain(value: Any) -> Any:
    """Rows of a table in an order that does not depend on how they came."""
    if isinstance(value, (dict, RowsByName)):
        return sorted((str(key), _plain(one)) for key, one in value.items())
    if isinstance(value, (list, tuple, Rows, DeferredRows)):
        return sorted(map(_inside, value), key=repr)
    return value


def _inside(value: Any) -> Any:
    """A row: its columns keep their places."""
    if isinstance(value, dict):
        return sorted((str(key), _inside(one)) for key, one in value.items())
    return [_inside(one) for one in value] if isinstance(value, (list, tuple)) else value
