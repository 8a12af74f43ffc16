"""Transaction check-backs and the resolution of transactions on behalf of operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.broker.broker import Broker
from services.broker.spine.values import (
    CheckBackRequest,
    Resolution,
    TransactionReceipt,
)
from services.live.append_quota import AppendQuota
from services.live.clients.check_back_log import CheckBackEntry, CheckBackLog


@dataclass(slots=True, frozen=True)
class ProducerView:
    """A producer of a topic. `is_connected` is true if the producer can receive check-backs."""

    topic: str
    client_id: str
    is_connected: bool


Producing = Callable[[str], list[ProducerView]]
"""Returns the producers of a topic, or of all topics if the topic name is empty."""


class LiveTransactions:
    """Operations on the transactions of a broker.

    The methods may raise `ResultUnknown` and any `TidewheelError` of the core.
    """

    def __init__(
        self,
        core: Callable[[], Broker],
        call: Callable[..., Awaitable[TransactionReceipt]],
        ask: Callable[[CheckBackRequest], str],
        room: AppendQuota,
    ) -> None:
        self._core, self._call, self._ask, self._room = core, call, ask, room
        self.log = CheckBackLog()
        self._producing: list[Producing] = []

    def set_producer_views(self, producing: Producing) -> None:
        """Register a function that returns producers to include in `producers`."""
        self._producing.append(producing)

    def producers(self, topic: str) -> list[ProducerView]:
        """Return the producers of a topic, or of all topics if `topic` is empty."""
        return [view for producing in self._producing for view in producing(topic)]

    async def resolve(self, transaction_id: str, resolution: Resolution, reason: str) -> TransactionReceipt:
        """End an open or expired transaction on behalf of an operator."""
        await self._room.wait_for_copy()
        return await self._call(self._core().transactions.resolve, transaction_id, resolution, reason)

    def check(self, transaction_id: str) -> CheckBackEntry:
        """Send a transaction check-back immediately, and return the entry in the check-back log."""
        question = self._core().transactions.create_check_back(transaction_id)
        self._ask(question)
        return next(self.log.check_backs_of(transaction_id))
