"""The blocks of a barrier's transactions: a session within, and afterwards the verdicts on timers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Generic, TypeVar

from tidewheel.errors import RefusedByState

if TYPE_CHECKING:
    from types import TracebackType

    from tidewheel.client.values import TimerResult

Opened = TypeVar("Opened")


def refuse_second_use(was_entered: bool) -> None:
    """Refuse a block that was entered before: its transaction has ended, and its messages have their ids.

    Raises:
        RefusedByState: for such a block.
    """
    if was_entered:
        raise RefusedByState(
            "This block was entered before. Make one for each: barrier.transaction(client, message)."
        )


class Block(Generic[Opened]):
    """The block of one transaction.

    After it `verdicts` has an entry for each message: the verdict on the timer that it cancels, moves or
    fires; None without one, from an official producer, and where the broker could not be told of the commit
    (then its check-back brings it about). It is empty after a rollback.
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
    """The block of one transaction in a loop, with the same `verdicts`."""

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
