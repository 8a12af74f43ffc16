"""`verify` finds no damage in stores that were used, crashed, retired and recovered in any way."""

from __future__ import annotations

import pytest

from services.store.read_only.opening import look_at
from services.store.read_only.state import fold
from services.store.verify.verify import verify
from tests.simulation.timer_world import World


@pytest.mark.parametrize("seed", range(0, 1500, 300))
def test_no_store_that_came_about_by_itself_is_called_damaged(seed: int) -> None:
    for steps in (100, 200, 300):
        world = World(seed)
        for _ in range(steps):
            world.step()
        world.faults.cease()
        world.settle()
        store = look_at(world.disk, "store")
        assert world.faults.unexplained(verify(store, world.now_ms)) == []
        state = fold(store, world.now_ms)
        waiting = {one.timer_offset for one in state.pending_timers()}
        assert waiting == {offset for offset, timer in world.oracle.timers.items() if not timer.ended}
