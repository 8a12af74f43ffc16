"""Consumer group operations that pause, wake waiting receives, or are subject to back-pressure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from commitlog.errors import StoreDamaged
from services.broker.broker import Broker
from services.broker.groups.group_values import GroupPolicy, GroupStart, GroupView, QueueView, ResetResult
from services.broker.spine.values import StartPosition
from services.live.append_quota import AppendQuota
from services.live.pauses import Pauses


class LiveGroups:
    """Operations on the consumer groups of a broker.

    The methods may raise `ResultUnknown` and any `TidewheelError` of the core.
    """

    def __init__(
        self,
        core: Callable[[], Broker],
        call: Callable[..., Awaitable[Any]],
        wake: Callable[[str], None],
        room: AppendQuota,
        offset_at: Callable[[str, int, int], int],
        to_real_time: Callable[[GroupView], GroupView],
    ) -> None:
        self._core, self._call, self._wake, self._room = core, call, wake, room
        self._offset_at, self._to_real_time = offset_at, to_real_time

    async def view(self, name: str) -> GroupView:
        """Return a view of a group. The method may yield to the event loop between two queues.

        Raise `GroupNotFound` if the group does not exist.
        """
        pauses, queues = Pauses(), list[QueueView]()
        for one in self._core().group_views.queues_of(name):
            queues.append(one)
            await pauses.pause()
        return self._to_real_time(self._core().group_views.assemble_view(name, queues))

    async def create(self, name: str, topic: str, start: GroupStart, policy: GroupPolicy | None) -> GroupView:
        """Create a group that is subscribed to `topic` from a start position.

        If `topic` is empty, the new group is subscribed to no topic.
        """
        placed = await self._resolve_offsets(start, [topic] if topic else [])
        await self._call(partial(self._core().group_views.create, policy=policy), name, topic, placed)
        return await self.view(name)

    async def _resolve_offsets(self, start: GroupStart, topics: list[str]) -> GroupStart:
        """Return the start position with its time, if any, resolved to queue offsets.

        The method also loads the parts of the queues that the next operation reads, and may yield to the
        event loop after each queue.
        """
        pauses, places = Pauses(), dict[tuple[str, int], int]()
        for topic in topics:
            for queue_id in range(self._core().topics.get(topic).queue_count):
                with suppress(StoreDamaged):  # The subsequent operation handles the damage.
                    if start.kind is StartPosition.TIME:
                        places[topic, queue_id] = self._offset_at(topic, queue_id, start.at)
                    self._core().finding.read(topic, queue_id, 0, 1)
                await pauses.pause()
        return replace(start, places=places)

    async def set(self, name: str, policy: GroupPolicy) -> GroupView:
        """Set the delivery policy of a group.

        Waiting receives are notified, because the group may have been paused.
        """
        await self._call(self._core().group_views.set_policy, name, policy)
        for topic in self._core().groups.topics_of(name):
            self._wake(topic)
        return await self.view(name)

    async def reset(
        self,
        name: str,
        topic: str,
        start: GroupStart,
        *,
        dry_run: bool,
        check: Callable[[GroupStart], None] | None = None,
    ) -> ResetResult:
        """Reset the offsets of a group to a start position.

        If `topic` is empty, reset the offsets in all topics of the group.

        Raise `GroupNotFound` if the group does not exist. `check` is called with the resolved start position
        immediately before the reset. If it raises an error, the reset does not take place, and the caller
        receives the error.
        """
        core = self._core()
        topics = [one for one in core.groups.topics_of(name) if topic in ("", one) and one in core.topics]
        start = await self._resolve_offsets(start, topics)
        move = self._core().group_views.reset
        placed = None if check is None else partial(check, start)
        reset: ResetResult = await self._call(move, name, topic, start, dry_run, check=placed)
        for one in set() if dry_run else {move.topic for move in reset.moves}:
            self._wake(one)
        return reset

    async def redrive(self, group: str, queue_offset: int, target: str = "") -> None:
        """Redrive a dead letter. Raise `MessageNotFound` if the dead letter does not exist."""
        await self._room.wait_for_copy()
        await self._call(self._core().dead_letters.redrive, group, queue_offset, target)
