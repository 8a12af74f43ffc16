"""Conversion between application values and message bodies.

    str, bytes                  sent unchanged
    a pydantic model            sent as JSON, with the property `content-type`
    dict, list, number, bool    sent as JSON, with the property `content-type`

A consumer receives exactly these bytes. Binary bodies, and texts of more than `TEXT_BYTES_MAX` bytes, are
sent in base64, because control characters take up to six times their size in JSON. Cost: the body is copied
once. Base64 adds a third to its size.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from tidewheel.errors import ClientMistake
from tidewheel.extras import needing

if TYPE_CHECKING:
    from pydantic import BaseModel

    Body = str | bytes | bytearray | memoryview | BaseModel | Mapping[str, Any] | list[Any] | int | float

Model = TypeVar("Model")

CONTENT_TYPE: Final = "content-type"
JSON_TYPE: Final = "application/json"
TEXT_BYTES_MAX: Final = 64 * 1024


def body_fields(body: Body) -> tuple[dict[str, str], dict[str, str]]:
    """Return the request fields of a body, and the properties that describe its content type.

    Raises:
        ClientMistake: If the body has an unsupported type or cannot be encoded.
    """
    if isinstance(body, bytes | bytearray | memoryview):
        return {"body_base64": b64encode(body).decode()}, {}
    if isinstance(body, str):
        return _text_fields(body), {}
    return _text_fields(json_text(body)), {CONTENT_TYPE: JSON_TYPE}


def body_bytes(body: Body) -> bytes:
    """Return the bytes that consumers receive for a body. Raises `ClientMistake` as `body_fields` does."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return _encoded(body if isinstance(body, str) else json_text(body))


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ClientMistake(f"The body is no text that UTF-8 can hold: {error}. Send bytes.") from None


def _text_fields(text: str) -> dict[str, str]:
    encoded = _encoded(text)
    if len(encoded) > TEXT_BYTES_MAX:
        return {"body_base64": b64encode(encoded).decode()}
    return {"body": text}


def json_text(value: Any) -> str:
    """Return a value as JSON. Raises `ClientMistake` if the value cannot be represented in JSON."""
    if value is None:
        raise ClientMistake("The body is None: a message has a body; for JSON's null send the text 'null'.")
    if hasattr(value, "model_dump_json"):
        return str(value.model_dump_json())
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ClientMistake(
            f"The body is a {type(value).__name__} that is no JSON: {error}. Send text, bytes, "
            "what JSON has, or a pydantic model."
        ) from None


def body_of(fields: Mapping[str, Any]) -> bytes:
    """Return the body from the fields of an answer."""
    if "body_base64" in fields:
        return b64decode(fields["body_base64"])
    return str(fields["body"]).encode()


def text_of(body: bytes) -> str:
    """Decode a body as UTF-8. Raises `ClientMistake` if it is not valid UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ClientMistake(f"The message's body is no text in UTF-8: {error}. Use its bytes.") from None


@overload
def json_of(body: bytes, model: None) -> Any: ...
@overload
def json_of(body: bytes, model: type[Model]) -> Model: ...
def json_of(body: bytes, model: type[Any] | None) -> Any:
    """Parse a JSON body. With a `model`, validate the value with pydantic and return it as that type.

    Raises:
        ClientMistake: If the body is not valid JSON or does not match the model.
    """
    if model is None:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ClientMistake(f"The message's body is no JSON: {error}. It begins {body[:40]!r}.") from None
    return _fitted(body, model)


@lru_cache(maxsize=128)
def _adapter(model: Hashable) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cast("Any", model))


def _fitted(body: bytes, model: type[Any]) -> Any:
    with needing("models"):
        from pydantic import ValidationError
    try:
        if hasattr(model, "model_validate_json"):
            return model.model_validate_json(body)
        return _adapter(cast("Hashable", model)).validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise ClientMistake(
            f"The message's body is no {getattr(model, '__name__', model)}: {where}: {first['msg']}."
        ) from None
