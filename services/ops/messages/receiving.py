"""The operations of consumers without a client library: receive, ack, nack and extend.

    POST /api/groups/GROUP/receive  {"topic", "filter" or "sql", "count", "wait", "lease"}: leases messages,
                                    and waits for the first message
    POST /api/groups/GROUP/ack      {"receipt_handles": [...]}: acknowledges messages
    POST /api/groups/GROUP/nack     {"receipt_handles": [...], "after": "30s"}: messages are redelivered after
                                    the delay, immediately with 0s, and without `after` according to the
                                    group's policy; with "dead_letter": true they become dead letters
    POST /api/groups/GROUP/extend   {"receipt_handles": [...], "lease": "2m"}: leases end after this time from
                                    now; the answer contains new handles, which replace the old handles

Groups, leases, attempts, dead letters, filters and errors are those of the protocol port, because both
interfaces use `services.live.clients.receivers` and the verbs of `services.broker.groups.receiving`. A lease
lasts as long as the request specifies. The broker does not renew leases of HTTP consumers, which must extend
their leases. A handle over HTTP begins with its topic ("TOPIC HANDLE"), so no other field is needed.

Each handle has a separate result, in which `error` is null or the error of the handle. The answer is sent
when all results are durable.

If the connection ends before the answer is sent completely, its leases are released and no attempt is
counted. Until the answer is sent, its bytes count as unread (`Receivers.unread_bytes`).

Cost: a turn of the event loop processes HANDLES_AT_ONCE handles, or fewer with pauses. Limitation: if a node
forwards an answer, the answer counts as sent when this node has received it. If the client does not receive
the answer, its leases expire.
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
from consumequeue.filters.filter import Filter, parse_tags
from services.broker.spine.errors import GroupNotFound, IllegalInvisibleTime, MessageTypeConflict
from services.broker.spine.topics import check_group_name
from services.broker.spine.values import Delivery
from services.live.created_topics import CreatedTopics
from services.live.durability import required_offset
from services.live.errors import ResultUnknown
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.messages.messages import (
    CreatedTopicAnswer,
    TakenAnswer,
    content_shape,
    created_topic_shape,
    taken_shape,
)
from services.ops.requests.answers import written
from services.ops.requests.given_times import span_in
from services.ops.requests.operation import Operation
from services.ops.requests.polls import (
    CALLER_GONE,
    CallerGone,
    Handed,
    HangUp,
    Polls,
    check_serves,
    client_id,
    poll_seconds,
)
from services.ops.requests.request import ConsumersReason, Span, said_as
from services.ops.requests.statuses import ErrorAnswer, error_shape
from tidewheel.errors import ClientMistake, TidewheelError

HANDLES_AT_ONCE: Final = limits.CALLS_PER_TURN_MAX

Handle = tuple[str, str]
"""A topic, and the receipt handle of a lease in it."""
Decided = tuple[int, str]
"""Offset that must be durable before the answer, and the new handle of an extended lease, else empty."""


class NewReceive(BaseModel):
    """The parameters of a receive: the maximum number of messages, the lease, the wait, and the filter."""

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
        """Return the filter.

        Raise `ClientMistake` for two filters, or `IllegalFilter` for an invalid filter.
        """
        if self.filter and self.sql:
            raise ClientMistake("filter and sql are given: a receive has one of them.")
        if not self.sql:
            return parse_tags(self.filter)
        # The import is deferred, because the creation of the parser takes 90 ms.
        from consumequeue.filters.sql_filter import parse_sql

        return parse_sql(self.sql)


class Acknowledged(BaseModel):
    """The messages to acknowledge."""

    model_config = ConfigDict(extra="forbid")

    receipt_handles: list[str] = Field(min_length=1, max_length=limits.ENTRIES_PER_REQUEST_MAX)


class Refused(Acknowledged):
    """The messages to redeliver `after` a duration, or to make dead letters."""

    after: Span | None = Field(
        None, description="A delay such as 30s; default: the delay of the group's policy."
    )
    dead_letter: bool = Field(False, description="Make the messages dead letters now.")
    reason: ConsumersReason = Field(
        "",
        description="Cause of the failure, which becomes part of the dead letter's reason.",
    )


class Extended(Acknowledged):
    """The leases to extend, which then end after the duration `lease` from now."""

    lease: Span = Field(description="A duration such as 2m.")


class ReceivedAnswer(TakenAnswer):
    """A leased message, which other consumers do not receive before `leased_until_ms`.

    `attempt` starts at 1. The receipt handle is used to acknowledge or refuse the message, or to extend the
    lease.
    """

    receipt_handle: str
    attempt: int
    leased_until_ms: str
    queue_id: int
    queue_offset: str
    store_ms: str


class ReceivedMessagesAnswer(TypedDict):
    """The leased messages, which may be none after the wait.

    `created_topic` is null unless the receive created its topic, whose name may be misspelt.
    """

    messages: list[ReceivedAnswer]
    created_topic: CreatedTopicAnswer | None


class HandleAnswer(TypedDict):
    """The result for a handle. `error` is null on success."""

    receipt_handle: str
    error: ErrorAnswer | None


class HandlesAnswer(TypedDict):
    """The results for all handles, in order."""

    done: int
    refused: int
    results: list[HandleAnswer]


class ExtendedAnswer(HandleAnswer):
    """The result for a lease. `new_receipt_handle` replaces the handle, or is null after an error."""

    new_receipt_handle: str | None


class ExtendedHandlesAnswer(TypedDict):
    """The results for all leases, in order."""

    done: int
    refused: int
    results: list[ExtendedAnswer]


def received_shape(delivery: Delivery, topic: str, *, as_text: bool = False) -> dict[str, Any]:
    """Return a leased message in JSON form. With `as_text`, a JSON body is returned as text."""
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
    """The handlers of consumers: receive, ack, nack and extend."""

    def __init__(self, live: LiveBroker, polls: Polls) -> None:
        self._live, self._polls = live, polls

    async def receive(self, request: Request) -> Response:
        """Lease messages of a topic, and wait for the first message."""
        wanted, group = await said_as(NewReceive, request), group_of(request)
        name = client_id(request, wanted.client)
        hang_up, answer, created = HangUp(request), Response(status_code=CALLER_GONE), CreatedTopics()
        try:
            with self._polls.one(request, "receive"):
                deliveries, lent = await hang_up.unless(self._lease(wanted, group, name, created))
            if not deliveries:
                check_serves(self._live)
            shapes = (received_shape(one, wanted.topic, as_text=wanted.as_text) for one in deliveries)
            body = {"messages": shapes, "created_topic": created_topic_shape(wanted.topic, created)}
            answer = await Handed.of(body, hang_up, lent.hold, lent.end)
        except CallerGone:
            return answer
        except ResultUnknown:  # a receive requests no write
            check_serves(self._live)
            raise
        finally:
            if not isinstance(answer, Handed):
                hang_up.close()
        return answer

    async def _lease(
        self, wanted: NewReceive, group: str, name: str, created: CreatedTopics
    ) -> tuple[list[Delivery], Lent]:
        """Lease messages, whose bytes count as unread. Raise `ClientMistake` or `Busy`."""
        live, topic, filtering = self._live, wanted.topic, wanted.wanted()
        seconds = poll_seconds(wanted.wait)
        lease_ms = lease_in(wanted.lease, "lease", live.settings.invisible_ms_min)
        if live.core.lite.is_lite(topic):
            raise MessageTypeConflict(
                f"{topic!r} holds lite topics. Receive from it with a client of the protocol port."
            )
        receive = live.receivers.receive
        wish = (group, topic, filtering, wanted.count, lease_ms, name, False, seconds)
        found = await receive(*wish, created=created)
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
                told = self._live.call_with_time(self._live.core.receiving.ack_many, group, topic, some)
                answers += [one if isinstance(one, TidewheelError) else (one, "") for one in told]
                await asyncio.sleep(0)
        await self._durable(answers)
        return await written(handles_shape(wanted.receipt_handles, answers))

    async def nack(self, request: Request) -> Response:
        """Redeliver messages, or make them dead letters."""
        wanted, group = await said_as(Refused, request), self._known_group(request)
        if wanted.dead_letter and wanted.after is not None:
            raise ClientMistake("after and dead_letter are given: a message comes again, or it does not.")
        if wanted.reason and not wanted.dead_letter:
            raise ClientMistake("reason is given: it is kept with a dead letter, not with another attempt.")
        after_ms = None if wanted.after is None else lease_in(wanted.after, "after")

        def retry(handle: Handle) -> Decided:
            topic, core_handle = handle
            verb = self._live.core.receiving.retry
            return self._live.call_with_time(verb, group, topic, core_handle, after_ms), ""

        def give_up(handle: Handle) -> Decided:
            topic, core_handle = handle
            verb = partial(self._live.core.receiving.forward_to_dead_letter, reason=wanted.reason)
            return self._live.call_with_time(verb, group, topic, core_handle), ""

        verb = give_up if wanted.dead_letter else retry
        answers = await self._each(wanted.receipt_handles, verb, copies=wanted.dead_letter)
        return await written(handles_shape(wanted.receipt_handles, answers))

    async def extend(self, request: Request) -> Response:
        """Extend leases, and replace their handles."""
        wanted, group = await said_as(Extended, request), self._known_group(request)
        lease_ms = lease_in(wanted.lease, "lease")

        def extend(handle: Handle) -> Decided:
            topic, core_handle = handle
            verb = self._live.core.receiving.change_invisible
            new, durable_at = self._live.call_with_time(verb, group, topic, core_handle, lease_ms, False)
            return durable_at, new

        answers = await self._each(wanted.receipt_handles, extend)
        return await written(handles_shape(wanted.receipt_handles, answers, renewed=True))

    async def _each(
        self, receipt_handles: Iterable[str], verb: Callable[[Handle], Decided], *, copies: bool = False
    ) -> list[Decided | TidewheelError]:
        """Apply a verb to each handle and return the durable results.

        `copies` is whether the verb appends messages.
        """
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
        """Wait until all results are durable. Raise `ResultUnknown`."""
        rests = (required_offset(one) if isinstance(one, TidewheelError) else one[0] for one in answers)
        await self._live.answers.wait_until_durable(max(rests))

    def _known_group(self, request: Request) -> str:
        """Return the group in the path of a request. Raise `GroupNotFound`."""
        group = group_of(request)
        if not self._live.core.groups.is_known(group):
            raise GroupNotFound(f"{group!r}. A group is made by its first receive.")
        return group


def lease_in(span: Span, field: str, ms_min: int = 0) -> int:
    """Return the duration of a lease in ms. Raise `IllegalInvisibleTime` or `ClientMistake`."""
    lease_ms = span_in(span, field)
    if not ms_min <= lease_ms <= limits.INVISIBLE_MS_MAX:
        hours = limits.INVISIBLE_MS_MAX // 3_600_000
        raise IllegalInvisibleTime(f"{field} is {span!r}: give {ms_min / 1000:g}s to {hours}h.")
    return lease_ms


def group_of(request: Request) -> str:
    """Return the group in the path of a request. Raise `IllegalGroup`."""
    group: str = request.path_params["group"]
    check_group_name(group)
    return group


class Lent:
    """The leases of an answer. `end` releases the leases if the answer was not sent completely."""

    def __init__(self, live: LiveBroker, group: str, topic: str, deliveries: list[Delivery]) -> None:
        self._live, self._group, self._topic = live, group, topic
        self._handles = [one.receipt_handle for one in deliveries]
        self._held_bytes = 0
        self.hold(sum(len(one.record.body) for one in deliveries))

    def hold(self, count_bytes: int) -> None:
        """Replace the number of unread bytes."""
        self._live.receivers.unread_bytes += count_bytes - self._held_bytes
        self._held_bytes = count_bytes

    def end(self, taken: bool) -> None:
        """Clear the number of unread bytes. Release the leases unless the answer was sent completely."""
        self.hold(0)
        if not taken:
            self._live.receivers.release_all_leases(self._group, self._topic, self._handles)


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
