"""The operation `POST /api/messages`, which sends messages, delayed messages, and verbs on timers.

    {"topic", "body" or "body_json" or "body_base64"}      a single message; 201 when it is on disk
    {"messages": [...]}                                     several messages, each with a separate result
    "in": "30m", "at": "2026-11-22T09:00+08:00"             a delayed message, whose name is "timer_key"
    "cancel": {"key": "order:7"}, "move", "fire"            a verb on a timer, stored in the same record

A message contains its verb on a timer (`services.broker.spine.verb_properties`). The result of the verb is
returned as `verdict`, and stored as a property of the message.

`idempotency_key`, or the header field Idempotency-Key, is used as the message id. If the same content is sent
with the same id within 30 s, or within ten minutes for a timer, the message is stored once, and each call
receives the first answer, without `created_topic` (`services.broker.deduplication`). Different content is
stored as another message.

`POST /api/topics/TOPIC/messages` accepts the bytes of a body with its content type, or CloudEvents
(`services.ops.messages.cloud_events`). The query contains the other fields of the message.

Cost: a turn of the event loop stores SENT_AT_ONCE messages, and a batch waits for one or two flushes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from commitlog import limits
from commitlog.records.message import Message
from services.broker.spine import verb_properties
from services.broker.spine.errors import IllegalDeliveryTime
from services.broker.spine.values import SendReceipt
from services.broker.spine.verb_properties import VerbKind
from services.broker.timers.delays import with_absolute_times
from services.live.created_topics import CreatedTopics
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.ops.messages.cloud_events import BATCH, STRUCTURED, VERSION_HEADER, Event, binary, structured
from services.ops.messages.message_bodies import CONTENT_TYPE, JSON_TYPE, json_bytes
from services.ops.messages.messages import ReceiptAnswer, body_bytes, receipt_shape
from services.ops.requests.answers import written
from services.ops.requests.given_times import delay_of, due_of
from services.ops.requests.operation import Operation
from services.ops.requests.request import (
    Given,
    Moment,
    Nothing,
    Number,
    Span,
    a_list,
    asked,
    body_of,
    check_values,
    json_in,
    said_by,
    shaped,
)
from services.ops.requests.statuses import ErrorAnswer, error_shape
from tidewheel import property_names
from tidewheel.errors import ClientMistake, TidewheelError

SENT_AT_ONCE: Final = 100
IDEMPOTENCY_KEY: Final = "idempotency-key"
_VERDICT: Final = re.compile(r"(\w+)(?: at (\d+) offset (\d+))?")


class CarriedTimer(BaseModel):
    """The timer of a verb, which is identified by its timer key or its message id."""

    model_config = ConfigDict(extra="forbid")

    key: str = Field(min_length=1, max_length=limits.TIMER_NAME_CHARACTERS_MAX)
    topic: str = Field("", description="The topic of the timer; default: the topic of the message.")


class CarriedMove(CarriedTimer):
    """The timer of a move, and its new due time."""

    to: Moment = Field(description="A time with a zone, milliseconds since 1970, or a duration from now.")


class NewMessage(BaseModel):
    """A message to send, which is delivered after the duration `in`, at the time `at`, or immediately.

    `timer_key` is the name of the timer until the delivery. The message replaces a pending timer with the
    same key, or is refused with `unique`. `cancel`, `move` or `fire` is a verb on another timer.
    """

    model_config = ConfigDict(extra="forbid")

    topic: str
    body: str | None = None
    body_json: Any = Field(None, description="A JSON value, instead of body.")
    body_base64: str | None = Field(None, description="Bytes in base64, instead of body.")
    keys: list[str] = []
    tag: str = ""
    message_group: str = ""
    properties: dict[str, str] = {}
    in_: Span | None = Field(None, alias="in", description="A duration with a unit, such as 30m.")
    at: Moment | None = Field(None, description="A time with a zone, or milliseconds since 1970.")
    in_ms: Number | None = None
    at_ms: Number | None = None
    timer_key: Given = ""
    unique: bool = False
    priority: int | None = Field(None, ge=0, description="For a topic of type PRIORITY; 0 is the lowest.")
    lite_topic: str = Field("", description="For a topic of type LITE: the lite topic of the message.")
    idempotency_key: str = Field("", min_length=1, max_length=limits.MESSAGE_ID_CHARACTERS_MAX)
    cancel: CarriedTimer | None = None
    move: CarriedMove | None = None
    fire: CarriedTimer | None = None

    def to_message(
        self, message_id: str, now_ms: int, *, is_half: bool = False, check_immunity_ms: int | None = None
    ) -> Message:
        """Return the message or half for the core. Raise a `ClientMistake` for an invalid message."""
        message = Message(
            topic=self.topic,
            body=self._body(),
            message_id=self.idempotency_key or message_id,
            tag=self.tag,
            keys=tuple(self.keys),
            message_group=self.message_group,
            delivery_ms=self._due_ms(now_ms),
            transactional=is_half,
            check_immunity_ms=check_immunity_ms,
            properties=self._type() | self.properties | self._marks(now_ms),
            born_ms=now_ms,
            priority=self.priority,
            lite_topic=self.lite_topic,
        )
        return with_absolute_times(message, now_ms)

    @property
    def _has_json(self) -> bool:
        return "body_json" in self.model_fields_set

    def _body(self) -> bytes:
        ways = (self.body is not None, self.body_base64 is not None, self._has_json)
        if sum(ways) != 1:
            raise ClientMistake("Give one of body, body_json and body_base64.")
        return json_bytes(self.body_json) if self._has_json else body_bytes(self.body, self.body_base64)

    def _type(self) -> dict[str, str]:
        return {CONTENT_TYPE: JSON_TYPE} if self._has_json else {}

    def _due_ms(self, now_ms: int) -> int | None:
        given = [self.in_, self.at, self.in_ms, self.at_ms]
        if sum(one is not None for one in given) > 1:
            raise IllegalDeliveryTime("Say when in one way: in, as 30m, or at, as 2026-11-22T09:00Z.")
        if self.in_ is not None:
            return now_ms + delay_of(self.in_, "in")
        if self.at is not None:
            return due_of(self.at, now_ms, "at")
        return self.at_ms if self.in_ms is None else now_ms + self.in_ms

    def _marks(self, now_ms: int) -> dict[str, str]:
        """Return the properties that represent fields.

        Raise `ClientMistake` for a property that is given twice.
        """
        marks = self._timer_properties() | self._verb(now_ms)
        if twice := marks.keys() & self.properties.keys():
            raise ClientMistake(f"{min(twice)} is given in properties, and by a field: give it once.")
        return marks

    def _timer_properties(self) -> dict[str, str]:
        if self.unique and not self.timer_key:
            raise ClientMistake("unique is about a timer_key: name one.")
        when = (self.in_, self.at, self.in_ms, self.at_ms)
        if self.timer_key and all(one is None for one in when):
            raise ClientMistake("timer_key is the name of a delayed message: say when, by in or at.")
        key = {property_names.TIMER_KEY: self.timer_key} if self.timer_key else {}
        return key | ({property_names.TIMER_UNIQUE: "true"} if self.unique else {})

    def _verb(self, now_ms: int) -> dict[str, str]:
        """Return the properties that represent the verb of the message."""
        verbs = {VerbKind.CANCEL: self.cancel, VerbKind.MOVE: self.move, VerbKind.FIRE: self.fire}
        carried = {kind: timer for kind, timer in verbs.items() if timer is not None}
        if len(carried) > 1:
            raise ClientMistake("A message carries one of cancel, move and fire.")
        found = dict[str, str]()
        for kind, timer in carried.items():
            found[kind.value] = timer.key
            if timer.topic:
                found[verb_properties.TOPIC] = timer.topic
            if isinstance(timer, CarriedMove):
                found[verb_properties.TO] = str(due_of(timer.to, now_ms, "move.to"))
        return found


class RawQuery(Nothing):
    """The fields of a message whose body is bytes, or of all events in a request."""

    tag: str = ""
    key: str = Field("", description="A message key.")
    message_group: str = ""
    in_: str | None = Field(None, alias="in", description="A duration such as 30m.")
    at: str | None = Field(None, description="A time with a zone, or milliseconds since 1970.")
    timer_key: Given = ""
    unique: bool = False
    priority: int | None = Field(None, ge=0)
    lite_topic: str = ""

    def to_message(self, topic: str, event: Event, now_ms: int) -> Message:
        """Return the message of an event or of bytes for the core.

        Raise a `ClientMistake` for an invalid message.
        """
        given = NewMessage.model_construct(
            topic=topic,
            body="",
            keys=[*event.keys, *([self.key] if self.key else [])],
            properties=event.properties,
            **{name: getattr(self, name) for name in RawQuery.model_fields if name != "key"},
        )
        return replace(given.to_message(event.message_id, now_ms), body=event.body)


class NewMessages(BaseModel):
    """Messages to send, each of which is stored or refused separately."""

    model_config = ConfigDict(extra="forbid")

    messages: list[NewMessage] = Field(min_length=1, max_length=limits.TIMER_BATCH_MAX)


class UnreadMessages(BaseModel):
    """The body of a `NewMessages` request whose messages have not been checked yet."""

    model_config = ConfigDict(extra="forbid")

    messages: list[Any] = Field(min_length=1, max_length=limits.TIMER_BATCH_MAX)


class CarriedVerdictAnswer(TypedDict):
    """The result of a verb, with the time and log offset of the timer's end, or null if it had not ended."""

    verdict: str
    ended_ms: str | None
    ended_offset: str | None


class SentAnswer(ReceiptAnswer):
    """A stored message. `verdict` is null unless the message contains a verb on a timer."""

    verdict: CarriedVerdictAnswer | None


class SentMessagesAnswer(TypedDict):
    """The results for all messages, in order."""

    sent: int
    refused: int
    messages: list[SentAnswer | ErrorAnswer]


async def send_each(
    live: LiveBroker, messages: Sequence[Message | TidewheelError], created: CreatedTopics
) -> list[SendReceipt | TidewheelError]:
    """Store messages, SENT_AT_ONCE in each turn of the event loop.

    Return their results. The topics that they create are added to `created`, or named in the errors of
    refused messages.
    """
    answers: list[Any] = list(messages)
    sound = [number for number, one in enumerate(answers) if isinstance(one, Message)]
    slices = [sound[first : first + SENT_AT_ONCE] for first in range(0, len(sound), SENT_AT_ONCE)]
    sent = []
    for numbers in slices:
        sent.append(asyncio.ensure_future(live.send_many([answers[number] for number in numbers], created)))
        await asyncio.sleep(0)
    for numbers, receipts in zip(slices, await asyncio.gather(*sent), strict=True):
        for number, receipt in zip(numbers, receipts, strict=True):
            answers[number] = receipt
    name_created_topics(messages, answers, created)
    return answers


def name_created_topics(
    messages: Sequence[Message | TidewheelError],
    answers: list[SendReceipt | TidewheelError],
    created: CreatedTopics,
) -> None:
    """Name each created topic in the error of a refused message, unless a message to it was stored."""
    given = list(zip(messages, answers, strict=True))
    stored = {
        message.topic
        for message, answer in given
        if isinstance(message, Message) and isinstance(answer, SendReceipt)
    }
    for number, (message, answer) in enumerate(given):
        if isinstance(answer, SendReceipt) or not isinstance(message, Message):
            continue
        if message.topic not in stored:
            answers[number] = created.with_created_topic_note(answer, message.topic)


def verdict_shape(said: str) -> CarriedVerdictAnswer | None:
    """Return the verdict of a message's verb in JSON form, or None if the message has no verb."""
    found = _VERDICT.fullmatch(said)
    if found is None:
        return None
    return {"verdict": found[1], "ended_ms": found[2], "ended_offset": found[3]}


class SendingApi:
    """The handlers of sends."""

    def __init__(self, live: LiveBroker) -> None:
        self._live = live

    async def send(self, request: Request) -> Response:
        """Store a message or several messages."""
        said, key = await said_by(request), header_key(request)
        if isinstance(said, list):
            raise a_list(NewMessages, "messages")
        if isinstance(said, dict) and "messages" in said:
            if key is not None:
                raise ClientMistake("The header Idempotency-Key is for one message: give each its own.")
            return await self._send_batch(said)
        wanted = with_key(shaped(NewMessage, said, ""), key)
        message = wanted.to_message(new_id(), self._live.now_ms())
        return await self._sent_one(message)

    async def send_raw(self, request: Request) -> Response:
        """Store the body of the request as a message, or store CloudEvents."""
        query, topic, now_ms = asked(RawQuery, request), request.path_params["topic"], self._live.now_ms()
        body, media_type = await body_of(request), media_type_of(request)
        if media_type == BATCH:
            return await self._send_events(query, topic, body)
        if media_type == STRUCTURED:
            await check_values(body, limits.HTTP_TIMERS_VALUES_MAX)
            event = structured(await json_in(body), "The event")
        elif VERSION_HEADER in request.headers:
            event = binary(body, request.headers)
        else:
            key = header_key(request)
            content_type = request.headers.get("content-type", "")
            event = Event(body, {CONTENT_TYPE: content_type} if content_type else {}, [], key or new_id())
        message = query.to_message(topic, event, now_ms)
        return await self._sent_one(message)

    async def _sent_one(self, message: Message) -> Response:
        """Store a message, and return an answer with its result."""
        created = CreatedTopics()
        receipt = await self._live.send(message, created)
        return JSONResponse(self._shape(message, receipt, created), status_code=201)

    async def _send_events(self, query: RawQuery, topic: str, body: bytes) -> Response:
        await check_values(body, limits.HTTP_TIMERS_VALUES_MAX)
        events, now_ms, pauses = await json_in(body), self._live.now_ms(), Pauses()
        if not isinstance(events, list) or not 1 <= len(events) <= limits.TIMER_BATCH_MAX:
            raise ClientMistake(f"The body is no list of 1 to {limits.TIMER_BATCH_MAX} CloudEvents.")
        messages = list[Message | TidewheelError]()
        for number, one in enumerate(events):
            try:
                messages.append(query.to_message(topic, structured(one, f"Event {number}"), now_ms))
            except TidewheelError as error:
                messages.append(error)
            await pauses.pause()
        return await self._sent(messages)

    async def _send_batch(self, said: Any) -> Response:
        given, now_ms, pauses = shaped(UnreadMessages, said, "").messages, self._live.now_ms(), Pauses()
        messages = list[Message | TidewheelError]()
        for number, one in enumerate(given):
            wanted = shaped(NewMessage, one, f"messages.{number}")
            try:
                messages.append(wanted.to_message(new_id(), now_ms))
            except TidewheelError as error:
                messages.append(error)
            await pauses.pause()
        return await self._sent(messages)

    async def _sent(self, messages: list[Message | TidewheelError]) -> Response:
        """Store messages, and return an answer with their results."""
        shapes, pauses, created = list[Any](), Pauses(), CreatedTopics()
        for message, receipt in zip(messages, await send_each(self._live, messages, created), strict=True):
            if isinstance(receipt, TidewheelError) or isinstance(message, TidewheelError):
                assert isinstance(receipt, TidewheelError), "a message that was refused is stored"
                shapes.append(error_shape(receipt))
            else:
                shapes.append(self._shape(message, receipt, created))
            await pauses.pause()
        refused = sum("code" in shape for shape in shapes)
        return await written({"sent": len(shapes) - refused, "refused": refused, "messages": shapes})

    def _shape(self, message: Message, receipt: SendReceipt, created: CreatedTopics) -> SentAnswer:
        """Return a durable message in JSON form, with the verdict of its verb."""
        verdict = None
        if verb_properties.has_verb(message):
            core, offset_ms = self._live.core, self._live.clock.offset_ms
            said = {verb_properties.VERDICT: core.finding.verdict(receipt.physical_offset)}
            shown = verb_properties.with_shifted_time(said, -offset_ms) if offset_ms else said
            verdict = verdict_shape(shown[verb_properties.VERDICT])
        return {**receipt_shape(receipt, message.topic, created), "verdict": verdict}


def media_type_of(request: Request) -> str:
    """Return the media type of the body of a request."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def new_id() -> str:
    """Return a new message id."""
    return uuid4().hex.upper()


def header_key(request: Request) -> str | None:
    """Return the idempotency key in the header of a request.

    Raise `ClientMistake` for an empty key or two keys.
    """
    keys = request.headers.getlist(IDEMPOTENCY_KEY)
    if len(keys) > 1:
        raise ClientMistake(f"The request has {len(keys)} fields Idempotency-Key: give one.")
    key = keys[0] if keys else None
    if key == "":
        raise ClientMistake("The header Idempotency-Key is empty: give a key, or leave the header away.")
    return key


def with_key(wanted: NewMessage, key: str | None) -> NewMessage:
    """Return a message with the idempotency key in the header of its request. Raise `ClientMistake`."""
    if key is None or key == wanted.idempotency_key:
        return wanted
    if wanted.idempotency_key:
        raise ClientMistake("idempotency_key and the header Idempotency-Key differ: give one of them.")
    if len(key) > limits.MESSAGE_ID_CHARACTERS_MAX:
        raise ClientMistake(f"Idempotency-Key has more than {limits.MESSAGE_ID_CHARACTERS_MAX} characters.")
    return wanted.model_copy(update={"idempotency_key": key})


OPERATIONS: Final = (
    Operation(
        "POST",
        "/api/messages",
        SendingApi.send,
        {201: SentAnswer, 200: SentMessagesAnswer},
        bodies=(NewMessage, NewMessages),
        refusals=(400, 404, 409, 503),
    ),
    Operation(
        "POST",
        "/api/topics/{topic}/messages",
        SendingApi.send_raw,
        {201: SentAnswer, 200: SentMessagesAnswer},
        RawQuery,
        media_types=("application/octet-stream", STRUCTURED, BATCH, "*/*"),
        refusals=(400, 404, 409, 503),
    ),
)
