"""`/api/groups/GROUP/receive`, and the ends of its leases: consumers without a client library.

    POST /api/groups/GROUP/receive  {"topic", "filter" or "sql", "count", "wait", "lease"}: leases messages,
                                    and waits for the first
    POST /api/groups/GROUP/ack      {"receipt_handles": [...]}: they are done
    POST /api/groups/GROUP/nack     {"receipt_handles": [...], "after": "30s"}: they come again, at once with
                                    0s, without `after` as the group's policy says; with "dead_letter": true
                                    they are given up
    POST /api/groups/GROUP/extend   {"receipt_handles": [...], "lease": "2m"}: leases end that much later from
                                    now; the new handles are in the answer, the old ones are void

Group, leases, attempts, dead letters, filters and errors are those of the protocol port: both call
`services.live.receivers` and the verbs of `services.broker.groups.receiving`. A lease lasts as long as
the request says; presence does not renew it, so a consumer over HTTP extends it. A handle over HTTP begins
with its topic ("TOPIC HANDLE"), so no other field is needed.

Each handle has its own result: `error` is null or an error of that handle. The answer is sent when all
results are durable.

If the connection ends before the answer is sent whole, its leases are released and no attempt counts. Until
then its bytes count as unread (`Receivers.unread_bytes`).

Cost: handles are decided HANDLES_AT_ONCE in a turn of the loop, or with pauses. Weak spot: through a node
that forwards, an answer counts as taken when that node has it; then the lease runs out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from commitlog import limits
from consumequeue.filter import Filter, parse_tags
from services.broker.spine.errors import GroupNotFound, IllegalInvisibleTime, MessageTypeConflict
from services.broker.spine.topics import check_group_name
from services.broker.spine.values import Delivery
from services.live.durability import required_offset
from services.live.errors import ResultUnknown
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.answers import written
from services.ops.given_times import span_in
from services.ops.messages import TakenAnswer, content_shape, taken_shape
from services.ops.operation import Operation
from services.ops.polls import (
    CALLER_GONE,
    CallerGone,
    Handed,
    HangUp,
    Polls,
    check_serves,
    client_id,
    poll_seconds,
)
from services.ops.request import ConsumersReason, Span, said_as
from services.ops.statuses import ErrorAnswer, error_shape
from tidewheel.errors import ClientMistake, TidewheelError

HANDLES_AT_ONCE: Final = limits.CALLS_PER_TURN_MAX

Handle = tuple[str, str]
"""A topic, and the receipt handle of a lease in it."""
Decided = tuple[int, str]
"""Offset that must be durable before the answer, and the new handle of an extended lease, else empty."""


class NewReceive(BaseModel):
    """A receive: lease up to `count` messages for `lease`; wait for the first."""

    model_config = ConfigDict(extra="forbid")

    topic: str = Field(min_length=1)
    filter: str = Field("", description="Tags, such as 'paid || sent'; default: all messages.")
    sql: str = Field("", description="An expression over properties, instead of filter.")
    count: int = Field(16, description=f"1 to {limits.RECEIVE_BATCH_MAX}; the answer may have fewer.")
    wait: Span = Field(
        "0s",
        description=f"Such as 5s; cut to {limits.LONG_POLL_MS // 1000}s. Without it the answer is at once.",
    )
    client: str = Field(
        "",
        max_length=limits.TOPIC_CHARACTERS_MAX,
        description="The consumer's name in lists; default: its address.",
    )
    lease: Span = Field(
        f"{limits.LEASE_MS_DEFAULT // 1000}s", description="Duration of the leases, such as 30s."
    )
    as_text: bool = Field(False, description="Return JSON bodies unchanged in body, not in body_json.")

    @field_validator("count")
    @classmethod
    def _in_range(cls, count: int) -> int:
        if not 1 <= count <= limits.RECEIVE_BATCH_MAX:
            raise ValueError(f"an answer has 1 to {limits.RECEIVE_BATCH_MAX} messages. Ask again for more")
        return count

    def wanted(self) -> Filter:
        """Return the filter; raise `ClientMistake` for two, or `IllegalFilter`."""
        if self.filter and self.sql:
            raise ClientMistake("filter and sql are given: a receive has one of them.")
        if not self.sql:
            return parse_tags(self.filter)
        # Not with the file: its parser takes 90 ms to make.
        from consumequeue.sql_filter import parse_sql

        return parse_sql(self.sql)


class Acknowledged(BaseModel):
    """Messages to acknowledge."""

    model_config = ConfigDict(extra="forbid")

    receipt_handles: list[str] = Field(min_length=1, max_length=limits.ENTRIES_PER_REQUEST_MAX)


class Refused(Acknowledged):
    """Messages to refuse: delivered again `after` a span, or made dead letters."""

    after: Span | None = Field(
        None, description="A delay such as 30s; default: the delay of the group's policy."
    )
    dead_letter: bool = Field(False, description="Make the messages dead letters now.")
    reason: ConsumersReason = Field(
        "",
        description="Cause of the failure, which becomes part of the dead letter's reason.",
    )


class Extended(Acknowledged):
    """Leases to extend: they end `lease` from now."""

    lease: Span = Field(description="A duration such as 2m.")


class ReceivedAnswer(TakenAnswer):
    """A leased message; others do not get it until `leased_until_ms`.

    `attempt` counts from 1. The receipt handle is for acknowledging, refusing or extending this lease.
    """

    receipt_handle: str
    attempt: int
    leased_until_ms: str
    queue_id: int
    queue_offset: str
    store_ms: str


class ReceivedMessagesAnswer(TypedDict):
    """The messages leased, none if there were none within the wait."""

    messages: list[ReceivedAnswer]


class HandleAnswer(TypedDict):
    """Result of one handle; `error` is null on success."""

    receipt_handle: str
    error: ErrorAnswer | None


class HandlesAnswer(TypedDict):
    """Results of all handles, in order."""

    done: int
    refused: int
    results: list[HandleAnswer]


class ExtendedAnswer(HandleAnswer):
    """Result of one lease; `new_receipt_handle` replaces its handle, null if it was refused."""

    new_receipt_handle: str | None


class ExtendedHandlesAnswer(TypedDict):
    """Results of all leases, in order."""

    done: int
    refused: int
    results: list[ExtendedAnswer]


def received_shape(delivery: Delivery, topic: str, *, as_text: bool = False) -> dict[str, Any]:
    """Return a leased message in JSON form; `as_text`: its body is no JSON value."""
    return {
        "receipt_handle": f"{topic} {delivery.receipt_handle}",
        "attempt": delivery.attempt,
        "leased_until_ms": str(delivery.visible_ms),
        "queue_id": delivery.queue_id,
        "queue_offset": str(delivery.queue_offset),
        "store_ms": str(delivery.store_ms),
        **(content_shape(delivery.message) if as_text else taken_shape(delivery.message)),
    }


def parted(receipt_handle: str) -> Handle:
    """Split a handle into its topic and the handle of the core."""
    topic, _, handle = receipt_handle.partition(" ")
    return topic, handle


def handles_shape(
    receipt_handles: list[str], answers: list[Decided | TidewheelError], *, renewed: bool = False
) -> dict[str, Any]:
    """Return the results of handles in JSON form."""
    results = []
    for given, answer in zip(receipt_handles, answers, strict=True):
        error, new = None, None
        if isinstance(answer, TidewheelError):
            error = error_shape(answer)
        else:
            new = f"{parted(given)[0]} {answer[1]}"
        results.append(
            {"receipt_handle": given, "error": error} | ({"new_receipt_handle": new} if renewed else {})
        )
    refused = sum(one["error"] is not None for one in results)
    return {"done": len(results) - refused, "refused": refused, "results": results}


class ReceivingApi:
    """Handlers of consumers: receive, ack, nack, extend."""

    def __init__(self, live: LiveBroker, polls: Polls) -> None:
        self._live, self._polls = live, polls

    async def receive(self, request: Request) -> Response:
        """Lease messages of a topic, waiting for the first."""
        wanted, group = await said_as(NewReceive, request), group_of(request)
        name = client_id(request, wanted.client)
        hang_up, answer = HangUp(request), Response(status_code=CALLER_GONE)
        try:
            with self._polls.one(request, "receive"):
                deliveries, lent = await hang_up.unless(self._lease(wanted, group, name))
            if not deliveries:
                check_serves(self._live)
            shapes = (received_shape(one, wanted.topic, as_text=wanted.as_text) for one in deliveries)
            answer = await Handed.of({"messages": shapes}, hang_up, lent.hold, lent.end)
        except CallerGone:
            return answer
        except ResultUnknown:  # the caller asked for no write
            check_serves(self._live)
            raise
        finally:
            if not isinstance(answer, Handed):
                hang_up.close()
        return answer

    async def _lease(self, wanted: NewReceive, group: str, name: str) -> tuple[list[Delivery], Lent]:
        """Lease messages, counted as unread; raise `ClientMistake` or `Busy`."""
        live, topic, filtering = self._live, wanted.topic, wanted.wanted()
        seconds = poll_seconds(wanted.wait)
        lease_ms = lease_in(wanted.lease, "lease", live.settings.invisible_ms_min)
        if live.core.lite.is_lite(topic):
            raise MessageTypeConflict(
                f"{topic!r} holds lite topics. Receive from it with a client of the protocol port."
            )
        receive = live.receivers.receive
        found = await receive(group, topic, filtering, wanted.count, lease_ms, name, False, seconds)
        return found, Lent(live, group, topic, found)

    async def ack(self, request: Request) -> Response:
        """Acknowledge messages."""
        wanted, group = await said_as(Acknowledged, request), self._known_group(request)
        handles = [parted(one) for one in wanted.receipt_handles]
        answers: list[Decided | TidewheelError] = []
        for topic, run in groupby(handles, lambda one: one[0]):
            of_topic = [handle for _, handle in run]
            for first in range(0, len(of_topic), HANDLES_AT_ONCE):
                some = of_topic[first : first + HANDLES_AT_ONCE]
                told = self._live.decide(self._live.core.receiving.ack_many, group, topic, some)
                answers += [one if isinstance(one, TidewheelError) else (one, "") for one in told]
                await asyncio.sleep(0)
        await self._durable(answers)
        return await written(handles_shape(wanted.receipt_handles, answers))

    async def nack(self, request: Request) -> Response:
        """Refuse messages: deliver them again, or make them dead letters."""
        wanted, group = await said_as(Refused, request), self._known_group(request)
        if wanted.dead_letter and wanted.after is not None:
            raise ClientMistake("after and dead_letter are given: a message comes again, or it does not.")
        if wanted.reason and not wanted.dead_letter:
            raise ClientMistake("reason is given: it is kept with a dead letter, not with another attempt.")
        after_ms = None if wanted.after is None else lease_in(wanted.after, "after")

        def retry(handle: Handle) -> Decided:
            topic, core_handle = handle
            verb = self._live.core.receiving.retry
            return self._live.decide(verb, group, topic, core_handle, after_ms), ""

        def give_up(handle: Handle) -> Decided:
            topic, core_handle = handle
            verb = partial(self._live.core.receiving.forward_to_dead_letter, reason=wanted.reason)
            return self._live.decide(verb, group, topic, core_handle), ""

        verb = give_up if wanted.dead_letter else retry
        answers = await self._each(wanted.receipt_handles, verb, copies=wanted.dead_letter)
        return await written(handles_shape(wanted.receipt_handles, answers))

    async def extend(self, request: Request) -> Response:
        """Extend leases; the old handles are void."""
        wanted, group = await said_as(Extended, request), self._known_group(request)
        lease_ms = lease_in(wanted.lease, "lease")

        def extend(handle: Handle) -> Decided:
            topic, core_handle = handle
            verb = self._live.core.receiving.change_invisible
            new, durable_at = self._live.decide(verb, group, topic, core_handle, lease_ms, False)
            return durable_at, new

        answers = await self._each(wanted.receipt_handles, extend)
        return await written(handles_shape(wanted.receipt_handles, answers, renewed=True))

    async def _each(
        self, receipt_handles: Iterable[str], verb: Callable[[Handle], Decided], *, copies: bool = False
    ) -> list[Decided | TidewheelError]:
        """Apply a verb to each handle and return the durable results; `copies`: the verb appends messages."""
        answers, pauses = list[Decided | TidewheelError](), Pauses()
        for one in receipt_handles:
            try:
                if copies:
                    await self._live.room.wait_for_copy()
                answers.append(verb(parted(one)))
            except TidewheelError as error:
                answers.append(error.with_traceback(None))
            await pauses.pause()
        await self._durable(answers)
        return answers

    async def _durable(self, answers: list[Decided | TidewheelError]) -> None:
        """Wait until all results are durable; raise `ResultUnknown`."""
        rests = (required_offset(one) if isinstance(one, TidewheelError) else one[0] for one in answers)
        await self._live.answers.wait_until_durable(max(rests))

    def _known_group(self, request: Request) -> str:
        """Return the group in a request's path; raise `GroupNotFound`."""
        group = group_of(request)
        if not self._live.core.groups.is_known(group):
            raise GroupNotFound(f"{group!r}. A group is made by its first receive.")
        return group


def lease_in(span: Span, field: str, ms_min: int = 0) -> int:
    """Return how long a message is invisible, in ms; raise `IllegalInvisibleTime` or `ClientMistake`."""
    lease_ms = span_in(span, field)
    if not ms_min <= lease_ms <= limits.INVISIBLE_MS_MAX:
        hours = limits.INVISIBLE_MS_MAX // 3_600_000
        raise IllegalInvisibleTime(f"{field} is {span!r}: give {ms_min / 1000:g}s to {hours}h.")
    return lease_ms


def group_of(request: Request) -> str:
    """Return the group in a request's path; raise `IllegalGroup`."""
    group: str = request.path_params["group"]
    check_group_name(group)
    return group


class Lent:
    """Leases of an answer: unread bytes until `end`, which releases the leases if it was not sent."""

    def __init__(self, live: LiveBroker, group: str, topic: str, deliveries: list[Delivery]) -> None:
        self._live, self._group, self._topic = live, group, topic
        self._handles = [one.receipt_handle for one in deliveries]
        self._held_bytes = 0
        self.hold(sum(len(one.record.body) for one in deliveries))

    def hold(self, count_bytes: int) -> None:
        """Replace the count of unread bytes."""
        self._live.receivers.unread_bytes += count_bytes - self._held_bytes
        self._held_bytes = count_bytes

    def end(self, taken: bool) -> None:
        """Drop the count of bytes; release the leases unless the answer was taken."""
        self.hold(0)
        if not taken:
            self._live.receivers.release_all(self._group, self._topic, self._handles)


GROUP: Final = "/api/groups/{group}"
OPERATIONS: Final = (
    Operation(
        "POST",
        f"{GROUP}/receive",
        ReceivingApi.receive,
        {200: ReceivedMessagesAnswer},
        bodies=(NewReceive,),
        refusals=(400, 404, 503),
    ),
    Operation(
        "POST",
        f"{GROUP}/ack",
        ReceivingApi.ack,
        {200: HandlesAnswer},
        bodies=(Acknowledged,),
        refusals=(400, 404, 503),
    ),
    Operation(
        "POST",
        f"{GROUP}/nack",
        ReceivingApi.nack,
        {200: HandlesAnswer},
        bodies=(Refused,),
        refusals=(400, 404, 503),
    ),
    Operation(
        "POST",
        f"{GROUP}/extend",
        ReceivingApi.extend,
        {200: ExtendedHandlesAnswer},
        bodies=(Extended,),
        refusals=(400, 404, 503),
    ),
)
