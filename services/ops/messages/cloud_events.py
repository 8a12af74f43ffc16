"""CloudEvents 1.0 over HTTP, which are stored as messages.

    structured   content-type application/cloudevents+json; the body is the event
    batch        content-type application/cloudevents-batch+json; the body is a list of events
    binary       the body is the data, and header fields `ce-NAME` are attributes, percent-encoded

An event is stored in the format of the RocketMQ binding in the CloudEvents Java SDK. An attribute NAME is the
property `CE_NAME`, and the data is the body. The body of an event without data is a single byte 0. Therefore,
consumers with this SDK can read the event, and an SQL filter can test `CE_type = 'com.example.paid'`.

The id of the event is a key of the message. The message id is derived from the id and the source, which are
unique together according to CloudEvents. Therefore, an event that is sent again is stored once, as other
messages are (`services.ops.messages.sending`).
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from services.ops.messages.message_bodies import JSON_TYPE, is_json_type, json_bytes
from services.ops.requests.request import shorten
from tidewheel.errors import ClientMistake

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
HEADER: Final = "ce-"
PREFIX: Final = "CE_"
VERSION_HEADER: Final = "ce-specversion"
NO_DATA: Final = b"\x00"
_NAME: Final = re.compile(r"[a-z0-9]{1,100}")
_REQUIRED: Final = ("id", "source", "specversion", "type")


class Event(NamedTuple):
    """An event, converted to the fields of a message."""

    body: bytes
    properties: dict[str, str]
    keys: list[str]
    message_id: str


def structured(said: Any, where: str) -> Event:
    """Convert an event in JSON form. Raise `ClientMistake`, with `where` as the location of the event."""
    if not isinstance(said, dict):
        raise ClientMistake(f"{where} is no CloudEvent: it must be an object in JSON.")
    if "data" in said and "data_base64" in said:
        raise ClientMistake(f"{where} has data and data_base64: a CloudEvent has one of them.")
    given = {name: said[name] for name in said if name not in ("data", "data_base64")}
    attributes = {name: _text(name, value, where) for name, value in given.items() if value is not None}
    if "data" in said:
        attributes.setdefault("datacontenttype", JSON_TYPE)
    return _event(_data(said, attributes.get("datacontenttype", ""), where), attributes, where)


def binary(body: bytes, headers: Mapping[str, str]) -> Event:
    """Convert an event whose data is the body of a request. Raise `ClientMistake` for an invalid event."""
    attributes = {
        name.lower().removeprefix(HEADER): unquote(value)
        for name, value in headers.items()
        if name.lower().startswith(HEADER)
    }
    if content_type := headers.get("content-type", ""):
        attributes["datacontenttype"] = content_type
    return _event(body or NO_DATA, attributes, "The event")


def _event(body: bytes, attributes: dict[str, str], where: str) -> Event:
    for name in _REQUIRED:
        if not attributes.get(name):
            raise ClientMistake(f"{where} has no {name}, which each CloudEvent must have.")
    if not attributes["specversion"].startswith("1."):
        raise ClientMistake(f"{where} is of version {shorten(attributes['specversion'])!r}; 1.0 is read.")
    for name in attributes:
        if not _NAME.fullmatch(name):
            raise ClientMistake(f"{where} has an attribute {shorten(name)!r}: names are a to z and 0 to 9.")
    event_id = attributes["id"]
    unique = sha256(f"{attributes['source']}\n{event_id}".encode()).hexdigest()[:32].upper()
    is_key = not re.search(r"\s", event_id)
    properties = {f"{PREFIX}{name}": value for name, value in attributes.items() if value}
    return Event(body, properties, [event_id] if is_key else [], unique)


def _text(name: str, value: Any, where: str) -> str:
    """Return the canonical text of the value of an attribute."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise ClientMistake(f"{where} has an attribute {shorten(name)} that is neither text, number nor truth.")


def _data(said: dict[str, Any], content_type: str, where: str) -> bytes:
    if "data_base64" in said:
        try:
            return b64decode(said["data_base64"], validate=True) or NO_DATA
        except (ValueError, TypeError) as error:
            raise ClientMistake(f"{where}: data_base64: {error}.") from error
    if "data" not in said:
        return NO_DATA
    data = said["data"]
    if isinstance(data, str) and not is_json_type(content_type):
        return data.encode() or NO_DATA
    return json_bytes(data)
