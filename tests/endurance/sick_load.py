"""The load of `test_sick_disk`: clients that send, delay, cancel, transact, receive, and note it all."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from tests.endurance.histories import Delivered, History, Outcome, Sent

METADATA = (("x-mq-client-id", "histories"),)
SERVICE = "/apache.rocketmq.v2.MessagingService/"
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]
GROUP = "g"
CALL_SECONDS = 5.0
INVISIBLE_MS = 2_000
PLAIN, LATER, LINES, HALVES = "plain", "later", "lines", "halves"
SPAN_MS = (200, 3_000)
FAR_MS = (16_000, 30_000)
END_TRIES = 40
BODY_BYTES_MAX = 12_000
PROPERTIES_MAX = 6
MESSAGES_FIELD = 0x0A
"""How `messages` of a SendMessageRequest begins on the wire: field 1, with a length."""
LINE_BACKLOG_MAX = 200
"""How many messages of a message group are sent ahead of one that is not acknowledged."""
NOBODY_KNOWS = frozenset((wire.Code.INTERNAL_SERVER_ERROR, wire.Code.INTERNAL_ERROR))


def outcome_of(code: int) -> Outcome:
    """Return what a status tells; TW-220 has the same code as what nobody knows, so it counts as that."""
    if code == wire.Code.OK:
        return Outcome.OK
    return Outcome.UNKNOWN if code in NOBODY_KNOWS else Outcome.REFUSED


class Load:
    """Clients of one broker until `is_over`; the far timers are set until `is_late`."""

    def __init__(self, listen: str, seed: int, history: History | None = None, name: str = "") -> None:
        self._channel = grpc.aio.insecure_channel(listen, options=CHANNEL_OPTIONS)
        self._listen = listen
        self._chance = random.Random(seed)
        self._count = 0
        self._of = name
        """What its ids and message groups have in their names, where several clients share topics."""
        self.history = History() if history is None else history
        self.repeats: tuple[Load, ...] = ()
        """What sends again, in turn, what nobody knows of, as the same message; nothing by default."""
        self.is_over = self.is_late = False
        self.groups: dict[str, str] = {}
        """The consumer groups of topics, if not `GROUP`."""
        self.acknowledged_share = 0.9
        """How much of what comes is acknowledged."""
        self.halves_run_out = False
        """Whether an end of a transaction may be refused, as one that has run out: a clock may jump."""

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()

    def senders(self) -> list[Callable[[], Awaitable[None]]]:
        """Return what each sender does, again and again."""
        lines = [lambda group=f"line{self._of}-{number}": self._send_line(group) for number in range(4)]
        return [self._send_plain, self._send_plain, *[self._send_later] * 4, self._send_half, *lines]

    def receivers(self) -> list[Callable[[], Awaitable[None]]]:
        """Return what each receiver does, again and again."""
        topics = (PLAIN, PLAIN, LATER, LINES, LINES, HALVES)
        return [lambda topic=topic: self.receive(topic) for topic in topics]

    async def go_on(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step until it is over, whatever becomes of the broker."""
        while not self.is_over:
            await step()
            await asyncio.sleep(0.01)

    async def receive(self, topic: str, seconds: float = 1.0) -> int:
        """Receive once and acknowledge most of it; returns how many came."""
        began = time.monotonic()
        request = service.ReceiveMessageRequest(
            group=self._group_of(topic),
            message_queue=wire.MessageQueue(topic=wire.Resource(name=topic)),
            batch_size=16,
        )
        request.invisible_duration.FromMilliseconds(INVISIBLE_MS)
        request.long_polling_timeout.FromMilliseconds(int(seconds * 1000))
        call = self._channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=service.ReceiveMessageRequest.SerializeToString,
            response_deserializer=service.ReceiveMessageResponse.FromString,
        )(request, metadata=METADATA, timeout=seconds + CALL_SECONDS)
        got: list[Any] = []
        number = self.history.watcher.receives(self._listen, request)
        with suppress(grpc.aio.AioRpcError):
            async for reply in call:
                if reply.HasField("message"):
                    self.history.watcher.saw(number, reply.message)
                    got.append(self._saw(topic, reply.message, began))
            self.history.watcher.received(number)
        if not got:
            await asyncio.sleep(0.05)
        await asyncio.gather(
            *(self._ack(topic, one) for one in got if self._chance.random() < self.acknowledged_share)
        )
        return len(got)

    def _group_of(self, topic: str) -> Any:
        return wire.Resource(name=self.groups.get(topic, GROUP))

    def _saw(self, topic: str, message: Any, began: float) -> Any:
        system = message.system_properties
        place = (topic, system.queue_id, system.queue_offset)
        seen = Delivered(system.message_id, place, began, time.monotonic(), time.time_ns() // 1_000_000)
        self.history.delivered.append(seen)
        return message

    async def _ack(self, topic: str, message: Any) -> None:
        system = message.system_properties
        entry = service.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        request = service.AckMessageRequest(
            group=self._group_of(topic), topic=wire.Resource(name=topic), entries=[entry]
        )
        self.history.tried_s.setdefault(system.message_id, time.monotonic())
        outcome, _ = await self._call("AckMessage", request, service.AckMessageResponse)
        self._note("ack", outcome)
        if outcome is Outcome.OK:
            self.history.acknowledged_s.setdefault(system.message_id, time.monotonic())

    async def _send_plain(self) -> None:
        await self._send(Sent(self._name("P"), PLAIN, Outcome.UNKNOWN))

    async def _send_line(self, group: str) -> None:
        """Send the next of a message group, whatever became of the one before."""
        number = 1 + self.history.last_numbers[group]
        behind = self.history.sent.get(f"{group}-{number - LINE_BACKLOG_MAX}")
        if behind is not None and behind.must_come and behind.message_id not in self.history.acknowledged_s:
            return  # else a long run has to wait for thousands at its end, which come one by one
        await self._send(Sent(f"{group}-{number}", LINES, Outcome.UNKNOWN, group=group, number=number))

    async def _send_later(self) -> None:
        is_far = self._chance.random() < 0.1 and not self.is_late
        span_ms = self._chance.randint(*(FAR_MS if is_far else SPAN_MS))
        due_ms = time.time_ns() // 1_000_000 + span_ms
        sent = Sent(self._name("L"), LATER, Outcome.UNKNOWN, due_ms=due_ms)
        reply = await self._send(sent)
        if sent.outcome is Outcome.OK and self._chance.random() < 0.3:
            await asyncio.sleep(self._chance.random() * span_ms / 1000)
            request = service.RecallMessageRequest(
                topic=wire.Resource(name=LATER), recall_handle=reply.entries[0].recall_handle
            )
            sent.cancel_outcome = Outcome.UNKNOWN
            sent.cancel_outcome, _ = await self._call("RecallMessage", request, service.RecallMessageResponse)
            self._note("cancel", sent.cancel_outcome)

    async def _send_half(self) -> None:
        sent = Sent(self._name("H"), HALVES, Outcome.UNKNOWN, is_half=True)
        sent.is_commit = self._chance.random() < 0.7
        reply = await self._send(sent)
        if sent.outcome is not Outcome.OK:
            return
        kinds = wire.TransactionResolution
        request = service.EndTransactionRequest(
            topic=wire.Resource(name=HALVES),
            message_id=sent.message_id,
            transaction_id=reply.entries[0].transaction_id,
            resolution=kinds.COMMIT if sent.is_commit else kinds.ROLLBACK,
        )
        sent.end_outcome = Outcome.UNKNOWN
        for _ in range(END_TRIES):
            outcome, _ = await self._call("EndTransaction", request, service.EndTransactionResponse)
            self._note("end", outcome)
            if outcome is not Outcome.UNKNOWN:
                assert outcome is Outcome.OK or self.halves_run_out, (
                    "an end that nobody gave otherwise was refused"
                )
                sent.end_outcome = outcome
                return
            await asyncio.sleep(0.2)

    async def _send(self, sent: Sent) -> Any:
        self.history.sends(sent)
        sent.began_ms = time.time_ns() // 1_000_000
        properties = wire.SystemProperties(message_id=sent.message_id, message_group=sent.group)
        properties.message_type = wire.MessageType.NORMAL
        if sent.due_ms:
            properties.message_type = wire.MessageType.DELAY
            properties.delivery_timestamp.FromMilliseconds(sent.due_ms)
        elif sent.group:
            properties.message_type = wire.MessageType.FIFO
        elif sent.is_half:
            properties.message_type = wire.MessageType.TRANSACTION
        message = wire.Message(
            topic=wire.Resource(name=sent.topic),
            body=_body_of(sent.message_id),
            system_properties=properties,
            user_properties=_properties_of(sent.message_id),
        )
        request = service.SendMessageRequest(messages=[message])
        sent.outcome, reply = await self._call("SendMessage", request, service.SendMessageResponse)
        self._note("send", sent.outcome)
        for other in self.repeats:
            if sent.outcome is not Outcome.UNKNOWN:
                break
            outcome, reply = await other._call("SendMessage", request, service.SendMessageResponse)
            self._note("send", outcome)
            sent.outcome = outcome if outcome is Outcome.OK else Outcome.UNKNOWN
        return reply

    async def _call(self, name: str, request: Any, reply: Any) -> tuple[Outcome, Any]:
        """Call an RPC, and let the watcher note it."""
        number = self.history.watcher.begin(self._listen, name, request)
        outcome, answer = await self._ask(name, request, reply)
        self.history.watcher.end(number, outcome.value, answer)
        return outcome, answer

    async def _ask(self, name: str, request: Any, reply: Any) -> tuple[Outcome, Any]:
        """Call an RPC; where no connection stood it was surely not carried, yet it counts as unknown."""
        in_any_order = partial(shuffled, chance=self._chance)
        call = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=in_any_order if name == "SendMessage" else type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            answer = await call(request, metadata=METADATA, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.3)
            return Outcome.UNKNOWN, None
        status = answer.entries[0].status if name == "AckMessage" and answer.entries else answer.status
        outcome = outcome_of(status.code)
        if outcome is not Outcome.OK:
            await asyncio.sleep(0.05)
        return outcome, answer

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._of}{self._count}"

    def stepped(self, node: str, offset_ms: int) -> None:
        """Note by how much a node's clock is off from now on."""
        self.history.stepped(node, offset_ms, time.time_ns() // 1_000_000)

    def _note(self, verb: str, outcome: Outcome) -> None:
        if verb == "send" and outcome is Outcome.OK:
            self.history.acknowledged_sends_s.append(time.monotonic())
        self.history.outcomes[f"{verb} {outcome.value}"] += 1


def shuffled(request: Any, chance: random.Random) -> bytes:
    """Return the bytes of a send of one message, its properties in an order that chance draws.

    An entry of a map is a field of its own, wherever it stands: so clients of other languages write it.
    """
    [message] = request.messages
    names = list(message.user_properties)
    chance.shuffle(names)
    bare = wire.Message()
    bare.CopyFrom(message)
    bare.user_properties.clear()
    entries = [wire.Message(user_properties={name: message.user_properties[name]}) for name in names]
    packed = b"".join(one.SerializeToString() for one in [bare, *entries])
    return bytes((MESSAGES_FIELD, *_varint(len(packed)))) + packed


def _varint(value: int) -> Iterator[int]:
    """Yield the bytes of a number as protobuf writes it."""
    while value >= 128:
        yield value % 128 + 128
        value //= 128
    yield value


def _properties_of(message_id: str) -> dict[str, str]:
    """Properties of its own for each message, none to `PROPERTIES_MAX`, the same whenever that is sent."""
    chance = random.Random(f"{message_id} properties")
    names = [f"property-{number}" for number in range(chance.randint(0, PROPERTIES_MAX))]
    return {name: chance.choice(("", "x", "zwölf", message_id * 5)) for name in names}


def _body_of(message_id: str) -> bytes:
    """A body of its own for each message, the same whenever that is sent."""
    chance = random.Random(message_id)
    return chance.randbytes(chance.randint(1, BODY_BYTES_MAX))
