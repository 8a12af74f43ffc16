"""Functions that read the query and the body of a request and convert them to shapes.

A shape is a pydantic model that forbids unknown fields, so that a misspelt field is reported and not ignored.
Each noun defines its shapes in its file, and this file contains the common functions.
`services.ops.requests.bodies` limits the size and the transfer time of a body, and the total size of all
incomplete requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from starlette.requests import Request

from commitlog import limits
from services.live.pauses import Pauses
from services.ops.requests.bodies import Bound, bound_of
from services.ops.requests.callers import caller_of
from services.ops.requests.errors import RequestTooLarge
from services.ops.requests.field_words import SYNONYMS
from services.ops.requests.long_texts import end_of_text, read_json
from tidewheel.errors import ClientMistake
from tidewheel.printable import one_line

LIMIT_DEFAULT = 20
LIMIT_MAX = 1_000
NUMBER_MAX = (1 << 63) - 1
_BEFORE_VALUES = (b",", b":", b"[", b"{")
_PIECE_BYTES = 256 * 1024
_DISCARDED_BYTES_MAX = 32 * 1024 * 1024
_QUOTED_MAX = 80
_NAMED_MAX = 200

_SAID: Final = "tidewheel.said"
_KEY: Final = "[key]"
"""The last part of the location of an error of pydantic about the name of a field in an object."""
_EMPTY: Final = "given_empty"
"""The type of the error for an empty text where a caller either gives a value or leaves the field out."""
_OBJECT: Final = "it must be an object, {...} in JSON"
_SENTENCES: Final = {
    "model_type": _OBJECT,
    "dict_type": _OBJECT,
    "list_type": "it must be a list, [...] in JSON",
    "string_type": "it must be a text in quotes",
    "int_type": "it must be a whole number",
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "bool_type": "it must be true or false",
    "bool_parsing": "it must be true or false",
}
"""Errors of pydantic by their type, for callers who do not know Python."""
_WORDS: Final = (
    ("Input should be", "it must be"),
    ("List should", "it must"),
    ("String should", "it must"),
    (" after validation", ""),
)


def _check_moment(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise ValueError("it must be a text in quotes, or a whole number of milliseconds")
    return given


def _check_span(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise ValueError('it must be a text with its unit, such as "30s"')
    return str(given)


def _check_one_line(given: str) -> str:
    if one_line(given) != given:
        raise ValueError("it must be one line without control characters")
    return given


def _check_given(given: Any) -> Any:
    if given == "":
        raise PydanticCustomError(_EMPTY, "leave it out, or give a value")
    return given


Number = Annotated[int, Field(ge=0, le=NUMBER_MAX)]
Moment = Annotated[str | Annotated[int, Strict()], BeforeValidator(_check_moment)]
"""What `services.times.moments` reads, or in a body a number of milliseconds since 1970."""
Span = Annotated[str, BeforeValidator(_check_span)]
"""A span of time with its unit; `services.ops.requests.given_times` reads it, and refuses a number."""
Reason = Annotated[str, Field(max_length=limits.REASON_CHARACTERS_MAX), AfterValidator(_check_one_line)]
"""Why an operator does something: it is stored as a property, which control characters would end."""
ConsumersReason = Annotated[
    str, Field(max_length=limits.DEAD_REASON_CHARACTERS_MAX), AfterValidator(_check_one_line)
]
"""Why a consumer gives a message up, likewise."""

Given = Annotated[str, AfterValidator(_check_given)]
"""A text that may be left out, but is not empty if it is given: it may be an unset variable of a program."""
Repeated = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
"""Texts: in a query a field that may be repeated, in a body a list or one text."""

Shape = TypeVar("Shape", bound=BaseModel)


class Nothing(BaseModel):
    """A query without parameters."""

    model_config = ConfigDict(extra="forbid")


class GivenFields(Nothing):
    """The conditions in a body that changes items. An empty text would select all items, and is refused."""

    @field_validator("*", mode="before")
    @classmethod
    def _are_given(cls, given: Any) -> Any:
        return _check_given(given)


def asked(kind: type[Shape], request: Request) -> Shape:
    """Convert the query of a request to a shape. Raise `ClientMistake` for the first invalid parameter."""
    try:
        return kind.model_validate(query_of(kind, request))
    except ValidationError as error:
        raise mistake(error, "the query", known=kind) from error


def query_of(kind: type[BaseModel], request: Request) -> dict[str, Any]:
    """Return the fields of a query: a list for a field that may be repeated, else the last value."""
    given: dict[str, Any] = dict(request.query_params)
    lists = (
        one.alias or name for name, one in kind.model_fields.items() if get_origin(one.annotation) is list
    )
    return given | {name: request.query_params.getlist(name) for name in lists if name in given}


async def said_as(kind: type[Shape], request: Request) -> Shape:
    """Convert the body of a request to a shape. Raise `ClientMistake` for the first invalid field."""
    return shaped(kind, await said_by(request), "")


def shaped(kind: type[Shape], said: Any, where: str) -> Shape:
    """Convert a part of a body to a shape. Raise `ClientMistake` for the first invalid field.

    `where` is the name of the part, or "" for the whole body. Each invalid field is an error of pydantic, so
    the number of fields is limited. An invalid nested value is a single error.
    """
    inner = said.values() if isinstance(said, dict) else ()
    if isinstance(said, list) and not where:
        raise a_list(kind)
    count = len(inner) + sum(len(one) for one in inner if isinstance(one, dict | list))
    if count > limits.HTTP_FIELDS_MAX:
        raise RequestTooLarge(
            f"{where or 'The body'} has {count} fields and items, the limit is {limits.HTTP_FIELDS_MAX}."
        )
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        raise mistake(error, "the body", where, kind) from error


async def said_by(request: Request) -> Any:
    """Return the JSON value of a body without a shape. Raise `ClientMistake` for invalid JSON.

    The body is parsed only once, because the authorization (`services.ops.needs`) and the handler must use
    the same value. A large body is processed further in another turn of the event loop.
    """
    scope = request.scope
    if _SAID not in scope:
        scope[_SAID] = await json_in(await body_of(request))
    return scope[_SAID]


async def json_in(body: bytes) -> Any:
    """Return the JSON value of a body whose values have already been counted. Raise `ClientMistake`."""
    if not body:
        raise _empty()
    try:
        said = await read_json(body)
    except ValueError as error:
        raise ClientMistake(f"the body: Invalid JSON: {error}.") from error
    if len(body) > _PIECE_BYTES:
        await asyncio.sleep(0)
    return said


async def body_of(request: Request) -> bytes:
    """Return the body of a request. Raise `RequestTooLarge` if it exceeds the limit of its route.

    Larger bodies of up to _DISCARDED_BYTES_MAX are read and discarded, because many clients read no answer
    before they have sent the body, and a server that stops reading resets the connection. Raise
    `Unauthorized` if the token was revoked during the transfer.
    """
    bound = bound_of(request.method, request.url.path)
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isascii() and declared.isdigit() else 0
    is_too_large = size > bound.bytes_max
    if size > _DISCARDED_BYTES_MAX:
        raise _too_large(bound)
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        is_too_large |= size > bound.bytes_max
        if size > _DISCARDED_BYTES_MAX:
            break
        if is_too_large:
            parts.clear()
        else:
            parts.append(part)
    if is_too_large:
        raise _too_large(bound)
    body = b"".join(parts)
    if bound.values_max:
        await check_values(body, bound.values_max)
    if (caller := caller_of(request)) is not None:
        caller.check()
    return body


def _empty() -> ClientMistake:
    return ClientMistake("The body is empty: send JSON, as curl --json '{...}' does.")


def _too_large(bound: Bound) -> RequestTooLarge:
    return RequestTooLarge(f"It has more than {bound.bytes_max} bytes. {bound.advice}")


async def check_values(body: bytes, values_max: int) -> None:
    """Raise `RequestTooLarge` for a JSON body with too many values, before the body is parsed.

    JSON is parsed in a single call without interruption, except for long texts. Each value is preceded by a
    comma, a colon or a bracket. Such characters inside texts are excluded only if the total number exceeds
    the limit.
    """
    count, pauses = 0, Pauses()
    for first in range(0, len(body), _PIECE_BYTES):
        count += _values(body, first, first + _PIECE_BYTES)
        await pauses.pause()
    if count <= values_max:
        return
    count = at = 0
    while at < len(body):
        end = min(at + _PIECE_BYTES, len(body))
        quote = body.find(b'"', at, end)
        count += _values(body, at, end if quote < 0 else quote)
        if count > values_max:
            raise RequestTooLarge(f"It has more than {values_max} values. Send less at once.")
        at = end if quote < 0 else await end_of_text(body, quote + 1, pauses) + 1
        await pauses.pause()


def _values(body: bytes, at: int, end: int) -> int:
    return sum(body.count(one, at, end) for one in _BEFORE_VALUES)


def shorten(name: str) -> str:
    """Return a name that a caller specified, truncated if it is long."""
    return name if len(name) <= _NAMED_MAX else f"{name[:_NAMED_MAX]}... ({len(name)} characters)"


def a_list(kind: type[BaseModel], field: str = "") -> ClientMistake:
    """Return the error for a body that is a list.

    `field` is the field that the error message suggests, or "" for the required list of `kind`.
    """
    lists = (
        name
        for name, one in kind.model_fields.items()
        if one.is_required() and get_origin(one.annotation) is list
    )
    name = field or next(lists, "")
    sample = f'{{"{name}": [...]}}' if name else "{...}"
    return ClientMistake(f"the body is a list: it must be an object, write {sample}.")


def mistake(
    error: ValidationError, whole: str, within: str = "", known: type[BaseModel] | None = None
) -> ClientMistake:
    """Return the first error in a query or a body (`whole`) as a `ClientMistake`.

    `known` is the shape of the query or body. For an unknown field, the fields of the part that contains it
    are listed. A missing field may be present under a wrong name, so the error also contains the first
    unknown field.
    """
    errors = error.errors(include_url=False, include_context=False)
    told = [_sentence(errors[0], whole, within, known)]
    if errors[0]["type"] == "missing":
        unknown = (one for one in errors if one["type"] == "extra_forbidden")
        told += [_sentence(one, whole, within, known) for one in islice(unknown, 1)]
    return ClientMistake(" ".join(told))


def fields_at(kind: type[BaseModel] | None, path: Sequence[str | int]) -> list[str]:
    """Return the names of the fields of a shape, or of the shape at a path within it.

    A number in the path is the position of an item in a list. The list is empty if there is no shape.
    """
    for part in path:
        if isinstance(part, str) and kind is not None:
            fields = (one for name, one in kind.model_fields.items() if part == (one.alias or name))
            kind = next((_shape_in(one.annotation) for one in fields), None)
    return [] if kind is None else [one.alias or name for name, one in kind.model_fields.items()]


def _shape_in(annotation: Any) -> type[BaseModel] | None:
    """Return the shape in a type such as `Shape`, `Shape | None` or `list[Shape]`, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_shape_in, get_args(annotation))), None)


def _sentence(one: ErrorDetails, whole: str, within: str, known: type[BaseModel] | None) -> str:
    """Return an error of pydantic as a sentence that contains its location in a query or a body."""
    parts = (*([within] if within else []), *one["loc"])
    where = shorten(".".join(str(part) for part in parts)) or whole
    kind, given = one["type"], one["input"]
    if len(one["loc"]) > 2 and one["loc"][-2:] == (given, _KEY):
        where = shorten(".".join(str(part) for part in parts[:-2]))
        named = f"a field with the name {shorten(str(given))!r}"
        return f"{where} has {named}: {_what_it_must_be(one)}."
    if kind == "missing":
        return f"{where} is missing."
    if kind == _EMPTY:
        return f"{where} is empty: {one['msg']}."
    if kind == "extra_forbidden":
        *path, name = one["loc"]
        return f"{where} is not known here: {_meant(str(name), fields_at(known, path))}"
    if kind == "string_type" and one["loc"] == ("body",) and isinstance(given, dict | list):
        return f"{where}: it must be a text in quotes; for JSON write body_json."
    return f"{where}{_quoted(given)}: {_what_it_must_be(one)}."


def _what_it_must_be(one: ErrorDetails) -> str:
    """Return an error of pydantic as the last part of a sentence."""
    said = one["msg"].removeprefix("Value error, ")
    for word, better in _WORDS:
        said = said.replace(word, better)
    return _SENTENCES.get(one["type"], said)


def _meant(name: str, known: Sequence[str]) -> str:
    """Return advice for an unknown field: the most similar known field, or a list of the known fields."""
    is_a_word = len(name) <= _QUOTED_MAX  # for MiB, lower() alone takes 10 ms
    alike = (*SYNONYMS.get(name.lower(), ()), *get_close_matches(name, known, 1)) if is_a_word else ()
    for wanted in alike:
        if wanted in known:
            return f"write {wanted}."
    return f"is it misspelt? There are {', '.join(known)}." if known else "is it misspelt?"


def _quoted(given: Any) -> str:
    """Return a given value for a quotation, or "" for a long value."""
    if not isinstance(given, str | int | float) or (isinstance(given, str) and len(given) > _QUOTED_MAX):
        return ""
    return f" is {given!r}" if len(repr(given)) <= _QUOTED_MAX else ""
