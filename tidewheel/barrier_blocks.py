"""Context managers of the barrier's transactions."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Generic, TypeVar

from tidewheel.errors import RefusedByState

if TYPE_CHECKING:
    from types import TracebackType

    from tidewheel.client.values import TimerResult

Opened = TypeVar("Opened")


def refuse_second_use(was_entered: bool) -> None:
    """Refuse to enter a block twice, because its transaction has ended and its messages have ids.

    Raises:
        RefusedByState: If the block was entered before.
    """
    if was_entered:
        raise RefusedByState(
            "This block was entered before. Make one for each: barrier.transaction(client, message)."
        )


class Block(Generic[Opened]):
    """Context manager of one transaction.

    After the block, `verdicts` contains an entry for each message: the verdict on the timer that the message
    cancels, moves or fires. The entry is None for a message without a timer operation, for an official
    producer, and if the broker could not be notified of the commit. In the last case, a check-back executes
    the timer operation. The list is empty after a rollback.
    """

    def __init__(self, inside: AbstractContextManager[Opened], verdicts: list[TimerResult | None]) -> None:
        self._inside, self.verdicts = inside, verdicts
        self._was_entered = False

    def __enter__(self) -> Opened:
        refuse_second_use(self._was_entered)
        self._was_entered = True
        return self._inside.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._inside.__exit__(kind, error, trace)


class AsyncBlock(Generic[Opened]):
    """Asynchronous context manager of one transaction, with the same `verdicts`."""

    def __init__(
        self, inside: AbstractAsyncContextManager[Opened], verdicts: list[TimerResult | None]
    ) -> None:
        self._inside, self.verdicts = inside, verdicts
        self._was_entered = False

    async def __aenter__(self) -> Opened:
        refuse_second_use(self._was_entered)
        self._was_entered = True
        return await self._inside.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._inside.__aexit__(kind, error, trace)
