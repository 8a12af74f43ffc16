"""The operations of `/api/clock`: the clock of the broker, real or virtual (`services.live.clock`).

    GET  /api/clock           returns the time, and the difference to real time
    POST /api/clock/advance   {"by": "30m"}: advances a virtual clock, and returns when the time is reached

Times in all other requests and answers are real times, which differ from the broker's time on a virtual
clock.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from services.live.clock import Clock
from services.live.errors import IllegalAdvance
from services.live.live_broker import LiveBroker
from services.ops.requests.operation import Operation
from services.ops.requests.request import said_as
from tidewheel import durations


class TimeToPass(BaseModel):
    """The duration by which a virtual clock is advanced: "500ms", "30s", "1h30m", "2d"."""

    model_config = ConfigDict(extra="forbid")

    by: str

    def by_ms(self) -> int:
        """Return the duration in milliseconds. Raise `IllegalAdvance` if it is invalid."""
        try:
            return durations.span_ms(self.by)
        except ValueError as error:
            raise IllegalAdvance(f"by is {self.by!r}: {error}.") from error


class ClockAnswer(TypedDict):
    """The time of the broker, and its difference to real time."""

    kind: Literal["real", "virtual"]
    now_ms: str
    offset_ms: str


def clock_shape(clock: Clock) -> ClockAnswer:
    """Return a clock in JSON form, with the time of the broker and its difference to real time."""
    return {
        "kind": "virtual" if clock.is_virtual else "real",
        "now_ms": str(clock.now_ms()),
        "offset_ms": str(clock.offset_ms),
    }


class ClockApi:
    """The handlers of `/api/clock`."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def clock(self, request: Request) -> JSONResponse:
        """Show the clock."""
        return JSONResponse(clock_shape(self._live.clock))

    async def advance(self, request: Request) -> JSONResponse:
        """Advance a virtual clock."""
        await self._live.advance((await said_as(TimeToPass, request)).by_ms())
        return JSONResponse(clock_shape(self._live.clock))


OPERATIONS: Final = (
    Operation("GET", "/api/clock", ClockApi.clock, {200: ClockAnswer}),
    Operation(
        "POST",
        "/api/clock/advance",
        ClockApi.advance,
        {200: ClockAnswer},
        bodies=(TimeToPass,),
        refusals=(400, 409, 503),
    ),
)
