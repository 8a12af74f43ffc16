"""What operators do to consumer groups that receivers are to hear of, or that waits for room on its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from services.broker.broker import Broker
from services.broker.group_values import GroupPolicy, GroupView, Reset, Start
from services.live.room import Room


class LiveGroups:
    """The groups of a broker. Errors are the core's `TidewheelError`s and `ResultUnknown`."""

    def __init__(
        self,
        core: Callable[[], Broker],
        call: Callable[..., Awaitable[Any]],
        wake: Callable[[str], None],
        room: Room,
    ) -> None:
        self._core, self._call, self._wake, self._room = core, call, wake, room

    async def set(self, name: str, policy: GroupPolicy) -> GroupView:
        """Say how a group's messages are given out; receivers of a group that is no longer paused wake."""
        view: GroupView = await self._call(self._core().group_views.set_policy, name, policy)
        for topic in {queue.topic for queue in view.queues}:
            self._wake(topic)
        return view

    async def reset(self, name: str, topic: str, start: Start, *, dry_run: bool) -> Reset:
        """Let a group go on from another place, on a topic or (empty) on all; raise `GroupNotFound`."""
        reset: Reset = await self._call(self._core().group_views.reset, name, topic, start, dry_run)
        for one in set() if dry_run else {move.topic for move in reset.moves}:
            self._wake(one)
        return reset

    async def redrive(self, group: str, queue_offset: int, target: str = "") -> None:
        """Send a dead letter again; raise `MessageNotFound`."""
        await self._room.for_copy()
        await self._call(self._core().dead_letters.redrive, group, queue_offset, target)
