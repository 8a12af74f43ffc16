"""Batching of a consumer group's acknowledgements.

While a call is in progress, new acknowledgements are queued and sent together in the next call. Cost: each
acknowledgement takes one call at low load. At high load, one call carries up to `ACK_COUNT_MAX`
acknowledgements.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tidewheel.client import calls
from tidewheel.errors import TidewheelError

if TYPE_CHECKING:
    from tidewheel.client.clients import AsyncClient
    from tidewheel.client.consumer import Received

ACK_COUNT_MAX: Final = 1_024


class Acks:
    """Acknowledgement queue of one consumer group."""

    def __init__(self, client: AsyncClient, group: str) -> None:
        self._client, self._group = client, group  # the group name with its namespace prefix
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._calling: asyncio.Task[None] | None = None

    async def ack(self, message: Received) -> None:
        """Acknowledge a message. Raises the broker's error if the acknowledgement is refused."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((message.handle, done))
        if self._calling is None:
            self._calling = asyncio.ensure_future(self._call())
        await done

    async def _call(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:ACK_COUNT_MAX], self._waiting[ACK_COUNT_MAX:]
                errors = await self._errors([handle for handle, _ in some])
                for (_, done), error in zip(some, errors, strict=True):
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
        finally:
            self._calling = None

    async def _errors(self, handles: list[str]) -> list[TidewheelError | None]:
        try:
            return await self._client.run(calls.ack(self._group, handles))
        except TidewheelError as error:
            return [error] * len(handles)
