"""A leftover file of the key index that cannot be deleted keeps a checkpoint from deleting no other file.

The rest that no snapshot names, of the timers and of the key index, goes as where nothing is stuck.
"""

from __future__ import annotations

from commitlog.layout import TIMERS
from tests.unit.services.broker.test_derived_unreadable import restart, stored

LEFT = "0-00000000000016000000"


def test_files_of_timers_are_deleted_though_one_of_the_key_index_is_stuck() -> None:
    store, disk = stored()
    disk.write(f"keyindex/{7:020}", 0, b"of a checkpoint that never ended")
    disk.stuck = f"keyindex/{7:020}"
    restart(store)
    disk.write(f"{TIMERS}/{LEFT}", 0, b"of 1970, which no snapshot names")
    for number in range(4):
        store.send(f"M{number + 1}", None)
        store.checkpoint()
    assert LEFT not in disk.list(TIMERS)


def test_other_files_of_the_key_index_are_deleted_though_one_is_stuck() -> None:
    store, disk = stored()
    disk.write(f"keyindex/{7:020}", 0, b"of a checkpoint that never ended")
    disk.stuck = f"keyindex/{7:020}"
    restart(store)
    for number in range(60):
        store.send(f"M{number + 1}", None)
        store.checkpoint()
    kept = {run.name for run in store.broker.store.keys.runs}
    assert len(disk.list("keyindex")) <= 2 * len(kept) + 4, sorted(disk.list("keyindex"))
