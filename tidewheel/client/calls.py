"""Client operations, without I/O. Each function builds a request and parses the answer.

    send, send_many         POST /api/messages
    timer verbs             POST /api/timers/cancel, /move, /fire; GET /api/timers/one
    receive and its ends    POST /api/groups/GROUP/receive, /ack, /nack, /extend

Each function returns `Steps` (`tidewheel.client.exchange`), which a transport runs. The fields are described
in docs/http.md.

Rules
1. The id of a message is assigned before the first attempt, so the broker stores a message only once even if
   it is sent again after a lost answer. The id is the application's idempotency key or a generated
   `message_id`.
2. A receive can be repeated, because the leases of a lost answer expire. An acknowledgement can be repeated:
   if the lost call had ended the lease, the repeat is refused like a late acknowledgement. A timer operation
   must not be repeated, because the key might refer to a newer timer by then.
3. On the wire, topic and group names have the client's namespace as a prefix ("NAMESPACE%NAME").

Cost: `send_many` holds at most `BATCH_BYTES_MAX` bytes of JSON at a time, and all results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from tidewheel.client.bodies import body_fields, body_of
from tidewheel.client.exchange import Request, Steps, asked, refusal
from tidewheel.client.names import in_path, text
from tidewheel.client.patience import PASSING
from tidewheel.client.spans import Span, moment_ms, moment_of, span_ms, span_text
from tidewheel.client.values import Delivery, NewMessage, Sent, SomeRefused, TimerResult, Verdict
from tidewheel.errors import Busy, ClientMistake, TidewheelError

MESSAGES_PATH: Final = "/api/messages"
BATCH_COUNT_MAX: Final = 500
BATCH_BYTES_MAX: Final = 2 * 1024 * 1024
"""Maximum size of the JSON in a request with more than one message."""
NOT_SENT: Final = "It was not sent: the request before had no answer. Send it again."
REASON_CHARACTERS_MAX: Final = 200
TIMER_KEY: Final = "TW_TIMER_KEY"
"""The property of a delivered message that contains its timer key."""
ACCOMPLISHED: Final = (Verdict.CANCELLED, Verdict.MOVED, Verdict.FIRED)
DONE, IMPOSSIBLE, UNKNOWN, GONE = 200, 409, 404, 410
"""HTTP statuses of timer verdicts."""


def spaced(namespace: str, name: str) -> str:
    """Return a topic or group name with its namespace prefix."""
    # names of other types are refused later
    return f"{namespace}%{name}" if namespace and isinstance(name, str) else name


def encoded(content: object) -> bytes:
    """Encode the content of a request as JSON."""
    try:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except TypeError as error:
        raise ClientMistake(f"A value of the call is no JSON: {error}.") from None
    except UnicodeEncodeError as error:
        raise ClientMistake(f"A text of the call cannot be held by UTF-8: {error}.") from None


# Sending


def message_fields(message: NewMessage, namespace: str, message_id: str) -> dict[str, Any]:
    """Return a message as request fields.

    Raises:
        ClientMistake: If options contradict each other, or if a time or the body is invalid.
    """
    body, marks = body_fields(message.body)
    fields: dict[str, Any] = {
        **body,
        "topic": spaced(namespace, message.topic),
        "idempotency_key": message.idempotency_key or message_id,
        **_when(message),
        **_carried(message),
    }
    optional = {
        "timer_key": message.key,
        "unique": message.unique,
        "message_group": message.group,
        "tag": message.tag,
        "keys": _key_list(message.keys),
        "properties": marks | _property_map(message.properties),
    }
    return fields | {name: value for name, value in optional.items() if value}


def _when(message: NewMessage) -> dict[str, int | str]:
    if message.delay is not None and message.at is not None:
        raise ClientMistake("delay and at are given: a message is due in one way.")
    if message.unique and not message.key:
        raise ClientMistake("unique is about a key: give one.")
    if message.delay is not None:
        return {"in": span_text(message.delay, "delay")}
    if message.at is not None:
        return {"at": moment_ms(message.at, "at")}
    if message.key:
        raise ClientMistake(f"key {message.key!r} names a delayed message: give its delay, or at.")
    return {}


def _carried(message: NewMessage) -> dict[str, Any]:
    """Return the timer operation that is attached to a message."""
    if message.move is not None:
        if not isinstance(message.move, tuple) or len(message.move) != 2:
            raise ClientMistake(f"move is {message.move!r:.80}: give (client.timer(topic, key), '1h').")
        timer, to = message.move
        return {"move": {**_timer_of(timer, "move"), "to": _due(to)}}
    verbs = {"cancel": message.cancel, "fire": message.fire}
    return {name: _timer_of(timer, name) for name, timer in verbs.items() if timer is not None}


def _timer_of(timer: Any, verb: str) -> dict[str, str]:
    if not hasattr(timer, "wire_topic"):
        raise ClientMistake(
            f"{verb} is {timer!r:.80}: it takes a timer, as client.timer(topic, key) returns it."
        )
    return {"key": timer.key, "topic": timer.wire_topic}


def _due(to: Span | datetime) -> int | str:
    return moment_ms(to, "to") if isinstance(to, datetime) else span_text(to, "to")


def _key_list(keys: Iterable[str]) -> list[str]:
    if isinstance(keys, str):
        raise ClientMistake(f"keys is the text {keys[:80]!r}: give a list of texts.")
    return list(keys)


def _property_map(properties: object) -> dict[str, str]:
    if not isinstance(properties, Mapping):
        raise ClientMistake(f"properties is {properties!r:.80}: give a dict of texts.")
    return dict(properties)


def send(message: NewMessage, namespace: str, message_id: str) -> Steps[Sent]:
    """Store one message. Raises the broker's error if the message is refused."""
    body = encoded(message_fields(message, namespace, message_id))
    request = Request("POST", MESSAGES_PATH, body, is_repeatable=True)
    return asked(request, lambda _, content: _sent(content, message))


def send_many(messages: Iterable[NewMessage], namespace: str, new_id: Callable[[], str]) -> Steps[list[Sent]]:
    """Store messages in batches and return their receipts.

    If a request gets no answer, the remaining messages are not sent. Each further request could block for
    seconds, and a late success would leave a gap in a message group.

    Raises:
        SomeRefused: If at least one message was not stored. The exception contains a receipt or an error for
            each message.
    """
    results: dict[int, Sent | TidewheelError] = {}
    batch, is_answered = Batch(), True
    for number, message in enumerate(messages):
        try:
            _check_message(message)
            fields = encoded(message_fields(message, namespace, new_id()))
        except TidewheelError as error:
            results[number] = error
            continue
        if not batch.has_room(fields):
            results |= yield from batch.send()
            batch, is_answered = Batch(), not batch.is_unanswered
        if is_answered:
            batch.add(number, message, fields)
        else:
            results[number] = Busy(NOT_SENT)
    results |= yield from batch.send()
    in_order = [results[number] for number in sorted(results)]
    receipts = [one for one in in_order if isinstance(one, Sent)]
    if len(receipts) < len(in_order):
        raise SomeRefused.of(in_order)
    return receipts


def _check_message(message: object) -> None:
    if not isinstance(message, NewMessage):
        raise ClientMistake(f"It is a {type(message).__name__}: give NewMessage(topic, body).")


class Batch:
    """Messages of one request, with their sequence numbers."""

    def __init__(self) -> None:
        self._numbered: list[tuple[int, NewMessage]] = []
        self._fields: list[bytes] = []
        self._size_bytes = 0
        self.is_unanswered = False
        """Whether the batch was sent without reaching a broker that could store it."""

    def has_room(self, fields: bytes) -> bool:
        """Return whether a message fits into the batch. An empty batch accepts any message."""
        is_full = len(self._fields) >= BATCH_COUNT_MAX or self._size_bytes + len(fields) > BATCH_BYTES_MAX
        return not (self._fields and is_full)

    def add(self, number: int, message: NewMessage, fields: bytes) -> None:
        """Add a message."""
        self._numbered.append((number, message))
        self._fields.append(fields)
        self._size_bytes += len(fields)

    def send(self) -> Steps[dict[int, Sent | TidewheelError]]:
        """Store the messages and return a result for each.

        If there is no answer, all messages get the same error.
        """
        if not self._fields:
            return {}
        body = b'{"messages":[' + b",".join(self._fields) + b"]}"
        try:
            return (yield from asked(Request("POST", MESSAGES_PATH, body, is_repeatable=True), self._results))
        except TidewheelError as error:
            self.is_unanswered = isinstance(error, PASSING)
            return dict.fromkeys((number for number, _ in self._numbered), error)

    def _results(self, _: int, content: Any) -> dict[int, Sent | TidewheelError]:
        pairs = zip(self._numbered, content["messages"], strict=True)
        return {number: refusal(0, one) or _sent(one, message) for (number, message), one in pairs}


def _sent(content: Mapping[str, Any], message: NewMessage) -> Sent:
    verdict = carried_result(content["verdict"], message)
    offset = int(content["physical_offset"])
    replaced = content["replaced_offset"]
    return Sent(
        content["message_id"],
        message.topic,
        offset,
        content["recall_handle"],
        verdict,
        None if replaced is None else int(replaced),
    )


def carried_result(content: Mapping[str, Any] | None, message: NewMessage) -> TimerResult | None:
    """Return the verdict on the attached timer operation from the answer to a send or commit."""
    if content is None:
        return None
    verdict, ended_ms, offset = (content[name] for name in ("verdict", "ended_ms", "ended_offset"))
    return TimerResult(
        Verdict(verdict),
        verdict in ACCOMPLISHED or (verdict == Verdict.ALREADY and message.cancel is not None),
        message_id="",
        at=None if ended_ms is None else moment_of(int(ended_ms)),
        offset=None if offset is None else int(offset),
    )


# Timers


def cancel(topic: str, key: str, reason: str) -> Steps[TimerResult]:
    """Cancel a timer."""
    return _verb("cancel", topic, key, {"reason": reason})


def fire(topic: str, key: str, reason: str) -> Steps[TimerResult]:
    """Deliver a timer's message immediately."""
    return _verb("fire", topic, key, {"reason": reason})


def move(topic: str, key: str, to: Span | datetime, reason: str) -> Steps[TimerResult]:
    """Change the due time of a timer to a datetime, or to a time span from now."""
    return _verb("move", topic, key, {"to": _due(to), "reason": reason})


def _verb(name: str, topic: str, key: str, more: Mapping[str, Any]) -> Steps[TimerResult]:
    request = Request("POST", f"/api/timers/{name}", encoded({**_named(topic, key), **more}))
    return asked(request, lambda status, said: _result(said, is_done=status == DONE), IMPOSSIBLE, UNKNOWN)


def _named(topic: str, key: str) -> dict[str, Any]:
    return {"topic": text(topic, "topic"), "key": text(key, "key")}


def get(topic: str, key: str) -> Steps[TimerResult]:
    """Return the state of a timer: PENDING, or how the timer ended."""
    try:
        query = urlencode(_named(topic, key))
    except UnicodeEncodeError as error:
        raise ClientMistake(f"A name of the timer cannot be held by UTF-8: {error}.") from None
    request = Request("GET", f"/api/timers/one?{query}", is_repeatable=True)
    return asked(request, lambda _, said: _looked_at(said), UNKNOWN, GONE)


def _looked_at(content: Mapping[str, Any]) -> TimerResult:
    if "verdict" in content:
        return _result(content, is_done=False)
    body = None if content["message"] is None else body_of(content["message"])
    due = moment_of(int(content["due_ms"]))
    return TimerResult(Verdict.PENDING, True, content["message_id"], due, due, body=body)


def _result(content: Mapping[str, Any], *, is_done: bool) -> TimerResult:
    due_ms, ended_ms, offset = (int(content[name]) for name in ("due_ms", "ended_ms", "ended_offset"))
    return TimerResult(
        Verdict(content["verdict"]),
        is_done,
        content["message_id"],
        moment_of(due_ms) if due_ms > 0 else None,
        moment_of(ended_ms) if ended_ms > 0 else None,
        offset if offset >= 0 else None,
    )


# Receiving


def receive(
    topic: str, group: str, *, count: int, wait: Span, lease: Span, tags: str, sql: str, name: str
) -> Steps[list[Delivery]]:
    """Lease messages. The call waits for the first message."""
    wait_ms = span_ms(wait, "wait")
    fields = {
        "topic": text(topic, "topic"),
        "count": count,
        "wait": f"{wait_ms}ms",
        "lease": span_text(lease, "lease"),
        "filter": tags,
        "sql": sql,
        "client": name,
        "as_text": True,
    }
    request = Request("POST", _path(group, "receive"), encoded(fields), wait_ms / 1000, is_repeatable=True)
    return asked(request, lambda _, said: [_delivery(one) for one in said["messages"]])


def _delivery(one: Mapping[str, Any]) -> Delivery:
    return Delivery(
        id=one["message_id"],
        topic=one["topic"],
        bytes=body_of(one),
        attempt=one["attempt"],
        handle=one["receipt_handle"],
        place=(one["queue_id"], int(one["queue_offset"])),
        leased_until=moment_of(int(one["leased_until_ms"])),
        tag=one["tag"],
        keys=tuple(one["keys"]),
        group=one["message_group"],
        key=one["properties"].get(TIMER_KEY, ""),
        properties=one["properties"],
        born=moment_of(int(one["born_ms"])),
    )


def ack(group: str, handles: Sequence[str]) -> Steps[list[TidewheelError | None]]:
    """Acknowledge leases. Returns an error or None for each receipt handle."""
    results = yield from _end(group, "ack", {"receipt_handles": list(handles)}, is_repeatable=True)
    return [error for error, _ in results]


def retry(group: str, handle: str, after: Span | None) -> Steps[None]:
    """Return a message to the broker for redelivery after a time span.

    The default delay is set by the group's retry policy.
    """
    more = {} if after is None else {"after": span_text(after, "after")}
    results = yield from _end(group, "nack", {"receipt_handles": [handle], **more})
    _raise_first(results)


def reject(group: str, handle: str, reason: str) -> Steps[None]:
    """Move a message to the dead-letter queue.

    The reason is truncated to one line of `REASON_CHARACTERS_MAX` characters.
    """
    more = {"dead_letter": True, "reason": one_line(reason)}
    results = yield from _end(group, "nack", {"receipt_handles": [handle], **more})
    _raise_first(results)


def one_line(reason: str) -> str:
    """Return a reason as one line of printable characters, truncated to the broker's limit."""
    line = " ".join(reason.split())[:REASON_CHARACTERS_MAX]
    return "".join(one if one.isprintable() else "?" for one in line)


def extend(group: str, handle: str, lease: Span) -> Steps[str]:
    """Extend a lease to a time span from now, and return the new receipt handle."""
    more = {"lease": span_text(lease, "lease")}
    results = yield from _end(group, "extend", {"receipt_handles": [handle], **more})
    _raise_first(results)
    return str(results[0][1]["new_receipt_handle"])


def ack_one(group: str, handle: str) -> Steps[None]:
    """Acknowledge a lease. Raises `InvalidReceiptHandle` if it has ended."""
    [error] = yield from ack(group, [handle])
    if error is not None:
        raise error


Results = list[tuple[TidewheelError | None, Mapping[str, Any]]]


def _end(group: str, verb: str, fields: Mapping[str, Any], *, is_repeatable: bool = False) -> Steps[Results]:
    """End or extend leases. Returns the error, if any, and the result for each receipt handle."""
    request = Request("POST", _path(group, verb), encoded(fields), is_repeatable=is_repeatable)
    return asked(request, lambda _, said: [(_error_of(one), one) for one in said["results"]])


def _error_of(result: Mapping[str, Any]) -> TidewheelError | None:
    error = result["error"]
    if error is None:
        return None
    return refusal(0, error) or TidewheelError(f"It was refused with {error!s:.100}.")


def _raise_first(results: Results) -> None:
    for error, _ in results:
        if error is not None:
            raise error


def _path(group: str, verb: str) -> str:
    return f"/api/groups/{in_path(group)}/{verb}"
