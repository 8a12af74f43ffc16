"""A rescue that finds nothing out for long must not fill the disk, across restarts, too.

Expected, as `TimerRepair` and `tests/unit/services/broker/timers/test_older_files.py` have it: files of times
in which nothing is damaged go once all files were read. Before, after a restart no older file is released
while any time is in doubt, so each restart adds what was split between its two newest snapshots, of all
times.
"""

from __future__ import annotations

from tests.unit.services.broker.timers.test_older_files import (
    assert_none_is_lost,
    checkpoint_twice,
    kill,
    let_checks_run,
)
from tests.unit.services.broker.timers.test_timer_repair import files, split_and_spoilt

OTHER = "timers/0-00000000000016000000"


def test_older_files_of_other_times_go_after_a_restart_while_a_rescue_fails() -> None:
    store, parent = split_and_spoilt()
    let_checks_run(store)
    store.disk.write(OTHER, 0, b"of 1970")
    kill(store)
    checkpoint_twice(store)
    assert OTHER in files(store), "not all was read yet"
    let_checks_run(store)
    checkpoint_twice(store)
    assert parent in files(store), "it alone has a record that is to be rebuilt"
    assert OTHER not in files(store)
    assert_none_is_lost(store)
    checkpoint_twice(store)
    assert parent not in files(store)
