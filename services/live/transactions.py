"""Transactions for callers in the loop: halves looked at, asked about, resolved by hand.

Answers rest on durable records, and times are those of callers (`services.live.clock`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from services.broker import verb_properties
from services.broker.broker import Broker
from services.broker.values import (
    CheckBack,
    EndReceipt,
    HalfFilter,
    HalfPage,
    HalfView,
    Resolution,
)
from services.live.check_log import CheckLog, Question
from services.live.clock import Clock
from services.live.room import Room


@dataclass(slots=True, frozen=True)
class ProducerView:
    """A client that produces to a topic, and whether it can be asked now."""

    topic: str
    client_id: str
    is_connected: bool


Producing = Callable[[str], list[ProducerView]]
"""The producers of a topic, or of all."""


class LiveTransactions:
    """The transactions of a broker. Errors are the core's `TidewheelError`s and `ResultUnknown`."""

    def __init__(
        self,
        core: Callable[[], Broker],
        told: Callable[..., Awaitable[EndReceipt]],
        ask: Callable[[CheckBack], str],
        clock: Clock,
        room: Room,
    ) -> None:
        self._core, self._told, self._ask, self._clock = core, told, ask, clock
        self._room = room
        self.log = CheckLog()
        self.producers: Producing = lambda topic: []

    def page(self, wanted: HalfFilter, after: int | None, count_max: int) -> HalfPage:
        """Look at half messages that are open or have expired, the oldest first."""
        inward = replace(wanted, stored_before_ms=wanted.stored_before_ms + self._clock.offset_ms)
        page = self._core().half_views.page(inward, after, count_max)
        return HalfPage([self._outward(view) for view in page.halves], page.after)

    def get(self, transaction_id: str) -> HalfView:
        """Look at one half message, however it ended."""
        return self._outward(self._core().half_views.one(transaction_id))

    def of_key(self, topic: str, key: str, count_max: int) -> list[HalfView]:
        """Look at the half messages of a key or message id, the newest first."""
        return [self._outward(view) for view in self._core().half_views.of_key(topic, key, count_max)]

    async def resolve(self, transaction_id: str, resolution: Resolution, reason: str) -> EndReceipt:
        """End by hand what is open or has expired."""
        await self._room.for_copy()
        return await self._told(self._core().transactions.resolve, transaction_id, resolution, reason)

    def check(self, transaction_id: str) -> Question:
        """Ask a producer at once; the question says whom, if anybody could be."""
        question = self._core().transactions.check_now(transaction_id)
        self._ask(question)
        return next(self.log.of(transaction_id))

    def _outward(self, view: HalfView) -> HalfView:
        offset_ms = self._clock.offset_ms
        if not offset_ms:
            return view
        return replace(
            view,
            stored_ms=view.stored_ms - offset_ms,
            due_ms=None if view.due_ms is None else view.due_ms - offset_ms,
            next_check_ms=view.next_check_ms and view.next_check_ms - offset_ms,
            ended_ms=view.ended_ms and view.ended_ms - offset_ms,
            late=tuple((event, at_ms - offset_ms) for event, at_ms in view.late),
            verdict=self._verdict_outward(view.verdict),
            message=view.message and self._clock.outward_message(view.message),
        )

    def _verdict_outward(self, verdict: str) -> str:
        said = {verb_properties.VERDICT: verdict}
        return verb_properties.with_shifted_time(said, -self._clock.offset_ms)[verb_properties.VERDICT]
