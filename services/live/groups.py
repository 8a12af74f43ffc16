"""Consumer groups and their dead letters for callers in the loop.

Answers rest on durable records, and times are those of callers (`services.live.clock`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from services.broker.broker import Broker
from services.broker.group_values import (
    DeadLetter,
    DeadLetterPage,
    From,
    GroupPolicy,
    GroupView,
    Reset,
    Start,
)
from services.live.clock import Clock
from services.live.room import Room


class LiveGroups:
    """The groups of a broker. Errors are the core's `TidewheelError`s and `ResultUnknown`."""

    def __init__(
        self,
        core: Callable[[], Broker],
        told: Callable[..., Awaitable[GroupView]],
        durable: Callable[..., Awaitable[None]],
        wake: Callable[[str], None],
        clock: Clock,
        room: Room,
    ) -> None:
        self._core, self._told, self._durable, self._wake, self._clock = core, told, durable, wake, clock
        self._room = room

    def all(self) -> list[GroupView]:
        """Look at all groups, by name."""
        return [self._outward(view) for view in self._core().group_views.all()]

    def get(self, name: str) -> GroupView:
        """Look at one group; raises `GroupNotFound`."""
        return self._outward(self._core().group_views.one(name))

    async def create(
        self, name: str, topic: str, start: Start, policy: GroupPolicy | None = None
    ) -> GroupView:
        """Let a group receive a topic from a place on, or (empty) exist before; raises `GroupExists`."""
        create = partial(self._core().group_views.create, policy=policy)
        return self._outward(await self._told(create, name, topic, self._inward(start)))

    def policy(self, name: str) -> GroupPolicy:
        """Return how a group's messages are given out, or would be: it need not exist."""
        return self._core().groups.policy(name)

    def exists(self, name: str) -> bool:
        """Whether there is a group of that name."""
        return name in self._core().groups.names()

    async def set(self, name: str, policy: GroupPolicy) -> GroupView:
        """Say how a group's messages are given out; receivers of a group that is no longer paused wake."""
        view = self._outward(await self._told(self._core().group_views.set_policy, name, policy))
        for topic in {queue.topic for queue in view.queues}:
            self._wake(topic)
        return view

    async def delete(self, name: str, topic: str = "") -> None:
        """Let a group leave a topic, or all; raises `GroupNotFound`."""
        await self._durable(self._core().group_views.delete, name, topic)

    async def reset(self, name: str, topic: str, start: Start, *, dry_run: bool) -> Reset:
        """Let a group go on from another place, on a topic or (empty) on all; raises `GroupNotFound`."""
        if dry_run:
            return self._core().group_views.reset(
                name, topic, self._inward(start), True, self._clock.now_ms()
            )
        reset = await self._reset(name, topic, self._inward(start))
        for one in {move.topic for move in reset.moves}:
            self._wake(one)
        return reset

    def dead_letters(self, group: str, after: int | None, count_max: int) -> DeadLetterPage:
        """Look at what a group gave up, the oldest first."""
        page = self._core().dead_letters.page(group, after, count_max)
        return DeadLetterPage([self._outward_letter(letter) for letter in page.letters], page.after)

    async def redrive(self, group: str, queue_offset: int, target: str = "") -> None:
        """Send a dead letter again; raises `MessageNotFound`."""
        await self._room.for_copy()
        await self._durable(self._core().dead_letters.redrive, group, queue_offset, target)

    async def purge(self, group: str, queue_offset: int) -> None:
        """Forget a dead letter; raises `MessageNotFound`."""
        await self._durable(self._core().dead_letters.purge, group, queue_offset)

    async def _reset(self, name: str, topic: str, start: Start) -> Reset:
        found: list[Reset] = []

        def reset(now_ms: int) -> int:
            found.append(self._core().group_views.reset(name, topic, start, False, now_ms))
            return found[0].durable_at

        await self._durable(reset)
        return found[0]

    def _inward(self, start: Start) -> Start:
        return replace(start, at=start.at + self._clock.offset_ms) if start.kind is From.TIME else start

    def _outward(self, view: GroupView) -> GroupView:
        offset_ms = self._clock.offset_ms
        if not offset_ms:
            return view
        queues = [
            replace(queue, oldest_ms=None if queue.oldest_ms is None else queue.oldest_ms - offset_ms)
            for queue in view.queues
        ]
        return replace(view, queues=queues)

    def _outward_letter(self, letter: DeadLetter) -> DeadLetter:
        return replace(
            letter,
            message=self._clock.outward_message(letter.message),
            store_ms=letter.store_ms - self._clock.offset_ms,
            first_error=self._outward_error(letter.first_error),
            last_error=self._outward_error(letter.last_error),
        )

    def _outward_error(self, error: str) -> str:
        at_ms, _, words = error.partition(" ")
        return f"{int(at_ms) - self._clock.offset_ms} {words}" if at_ms.isdigit() else error
