"""Transactions for callers in the loop: asked about, resolved by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.broker.broker import Broker
from services.broker.spine.values import (
    CheckBack,
    EndReceipt,
    Resolution,
)
from services.live.check_log import CheckLog, Question
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
        call: Callable[..., Awaitable[EndReceipt]],
        ask: Callable[[CheckBack], str],
        room: Room,
    ) -> None:
        self._core, self._call, self._ask, self._room = core, call, ask, room
        self.log = CheckLog()
        self._producing: list[Producing] = []

    def list_with(self, producing: Producing) -> None:
        """List the producers that `producing` knows, too."""
        self._producing.append(producing)

    def producers(self, topic: str) -> list[ProducerView]:
        """Return the producers of a topic, or (empty) of all."""
        return [view for producing in self._producing for view in producing(topic)]

    async def resolve(self, transaction_id: str, resolution: Resolution, reason: str) -> EndReceipt:
        """End by hand what is open or has expired."""
        await self._room.for_copy()
        return await self._call(self._core().transactions.resolve, transaction_id, resolution, reason)

    def check(self, transaction_id: str) -> Question:
        """Ask a producer at once; the question says whom, if anybody could be."""
        question = self._core().transactions.check_now(transaction_id)
        self._ask(question)
        return next(self.log.of(transaction_id))
