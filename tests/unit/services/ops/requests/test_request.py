"""What a caller is told of a query or a body that is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import Field
from starlette.requests import Request

from commitlog import limits
from services.ops.requests.errors import RequestTooLarge
from services.ops.requests.request import Nothing, body_of, shaped
from services.ops.timers.timers import NewTimer
from tidewheel.errors import ClientMistake


def test_a_long_name_is_cut_in_the_sentence_that_tells_of_it() -> None:
    with pytest.raises(ClientMistake) as refused:
        shaped(Nothing, {"a" * (1 << 20): 1}, "")
    assert len(str(refused.value)) < 500
    assert "a... (1048576 characters) is not known here" in str(refused.value)


def test_a_short_name_is_told_whole() -> None:
    with pytest.raises(ClientMistake, match="tpoic is not known here"):
        shaped(Nothing, {"tpoic": 1}, "")


@pytest.mark.parametrize(
    ("path", "bytes_max", "advice"),
    [
        ("/api/messages", limits.HTTP_MESSAGES_BYTES_MAX, "body_base64"),
        ("/api/timers", limits.HTTP_MESSAGES_BYTES_MAX, "body_base64"),
        ("/api/topics", limits.HTTP_BODY_BYTES_MAX, "less at once"),
        ("/api/cluster/move", limits.HTTP_BODY_BYTES_MAX, "less at once"),
    ],
)
def test_a_body_that_is_declared_too_large_for_its_route_is_refused_and_far_too_large_unread(
    path: str, bytes_max: int, advice: str
) -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def unread() -> Any:
        raise AssertionError("it is read")

    def request(declared: int, receive: Any) -> Request:
        headers = [(b"content-length", str(declared).encode())]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        return Request(scope, receive)

    assert asyncio.run(body_of(request(bytes_max, receive))) == b""
    with pytest.raises(RequestTooLarge, match=f"more than {bytes_max} bytes.*{advice}"):
        asyncio.run(body_of(request(bytes_max + 1, receive)))
    with pytest.raises(RequestTooLarge, match=f"more than {bytes_max} bytes.*{advice}"):
        asyncio.run(body_of(request((32 << 20) + 1, unread)))


def test_a_part_with_more_values_than_can_be_told_as_wrong_is_refused_for_their_number() -> None:
    many = range(limits.HTTP_FIELDS_MAX + 1)
    for wrong in ({str(one): 1 for one in many}, {"topic": "t", "keys": list(many)}):
        with pytest.raises(RequestTooLarge, match=r"timers\.7 has \d+ fields and items"):
            shaped(NewTimer, wrong, "timers.7")
    with pytest.raises(ClientMistake, match=r"timers\.7\.topic is missing"):
        shaped(NewTimer, {}, "timers.7")


class Part(Nothing):
    """A part of a body."""

    inner: str = Field("", alias="in-ner")


class Whole(Nothing):
    """A body with parts."""

    one: Part | None = None
    many: list[Part] = Field([])
    texts: dict[str, str] = Field({})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"colour": 1}, "colour is not known here: is it misspelt? There are one, many, texts."),
        ({"one": {"colour": 1}}, "one.colour is not known here: is it misspelt? There are in-ner."),
        ({"many": [{}, {"colour": 1}]}, "many.1.colour is not known here: is it misspelt? There are in-ner."),
        ({"one": {"inner": "x"}}, "one.inner is not known here: write in-ner."),
    ],
)
def test_an_unknown_field_is_told_with_the_fields_of_its_part(body: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientMistake) as refused:
        shaped(Whole, body, "")
    assert str(refused.value).endswith(said)
