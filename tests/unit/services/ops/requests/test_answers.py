"""Large answers and bodies: written and checked in pieces, as JSON has them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response

from commitlog import limits
from services.live.pauses import Pauses
from services.ops.probes import Probes
from services.ops.requests.answers import JsonText, written
from services.ops.requests.errors import RequestTooLarge
from services.ops.requests.request import check_values


async def sent(answer: Response) -> list[bytes]:
    """Return the parts in which an answer is sent, which have the length that it declares."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError("an answer is only sent: a task that watches for a hang-up takes anyio")

    await answer({"type": "http"}, receive, send)
    parts = [message["body"] for message in messages[1:]]
    assert dict(messages[0]["headers"])[b"content-length"] == str(sum(map(len, parts))).encode()
    return parts


async def told(content: dict[str, Any]) -> list[bytes]:
    """Return the parts of an answer in JSON."""
    return await sent(await written(content))


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, VALUE))
def test_an_answer_is_what_json_makes_of_it(content: dict[str, Any]) -> None:
    body = asyncio.run(written(content)).body
    assert bytes(body) == json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def test_long_texts_and_rows_that_come_one_by_one_are_written_whole() -> None:
    long = 'a"\n\x00é' * 100_000
    rows = [{"body": long, "n": 1}, {"list": list(range(1_000))}]
    parts = asyncio.run(told({"rows": iter(rows), "text": long}))
    assert json.loads(b"".join(parts)) == {"rows": rows, "text": long}


def test_a_long_answer_is_not_joined_but_sent_in_parts() -> None:
    parts = asyncio.run(told({"rows": ("x" * 1_000 for _ in range(20_000))}))
    assert len(json.loads(b"".join(parts))["rows"]) == 20_000
    assert max(map(len, parts)) < 2 * 1024 * 1024


def test_a_long_text_to_scrape_is_not_joined_but_sent_in_parts() -> None:
    class Many:
        def in_turns(self) -> Iterator[Metric | None]:
            for name in ("first", "second"):
                family = GaugeMetricFamily(name, "Many.", labels=("label",))
                for number in range(20_000):
                    family.add_metric((f"{number:050d}",), number)
                yield None
                yield family

    many: Any = Many()
    no_live: Any = None

    async def scenario() -> list[bytes]:
        return await sent(await Probes(no_live, many, dict).scrape(Request({"type": "http"})))

    parts = asyncio.run(scenario())
    assert max(map(len, parts)) < 2 * 1024 * 1024 < sum(map(len, parts))
    lines = b"".join(parts).decode().splitlines()
    assert len(lines) == len(set(lines)) == 2 * (2 + 20_000)


def test_others_have_their_turn_while_a_long_answer_is_written() -> None:
    async def scenario() -> int:
        turns, task = 0, asyncio.ensure_future(written({"n": ({"n": n} for n in range(200_000))}))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(scenario()) > 5


def test_the_writing_begins_in_a_turn_of_its_own() -> None:
    async def scenario() -> int:
        turn, written_in = 0, 0

        def rows() -> Iterator[int]:
            nonlocal written_in
            written_in = turn
            yield 1

        task = asyncio.ensure_future(written({"n": rows()}))
        while not task.done():
            turn += 1
            await asyncio.sleep(0)
        return written_in

    assert asyncio.run(scenario()) == 2


def test_names_are_sorted_with_pauses() -> None:
    names = [f"{number * 7_919 % 30_000:05d}" for number in range(30_000)]

    async def in_order() -> list[str]:
        return list(await Pauses().sort_names(names))

    assert asyncio.run(in_order()) == sorted(names)


@pytest.mark.parametrize(
    ("body", "is_taken"),
    [
        (b"[" + b"1," * limits.HTTP_BODY_VALUES_MAX + b"1]", False),
        (b"[" + b'"",' * limits.HTTP_BODY_VALUES_MAX + b'""]', False),
        (b"[" * (limits.HTTP_BODY_VALUES_MAX + 1), False),
        (b'{"body": "' + b",:[{" * (1 << 20) + b'"}', True),
        (b'{"body": "' + b'\\",\\\\' * (1 << 18) + b'"}', True),
        (b'{"body": "' + b",\\" * (1 << 18) + b'"}', True),
        (b'"' + b"," * (1 << 18), True),
        (b"x" * (1 << 20), True),
        (b"", True),
    ],
)
def test_a_body_has_so_many_values(body: bytes, is_taken: bool) -> None:
    if is_taken:
        asyncio.run(check_values(body, limits.HTTP_BODY_VALUES_MAX))
    else:
        with pytest.raises(RequestTooLarge, match="values"):
            asyncio.run(check_values(body, limits.HTTP_BODY_VALUES_MAX))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_text_that_is_json_stays_as_it_is_however_deep(depth: int) -> None:
    content: dict[str, Any] = {"body": JsonText('{"n":1.10,"t":"' + "x" * 100_000 + '"}')}
    for _ in range(depth):
        content = {"within": content}
    answer = asyncio.run(written({"rows": [content]}))
    assert b'{"n":1.10,"t":"xxx' in bytes(answer.body)
    found = json.loads(bytes(answer.body))["rows"][0]
    for _ in range(depth):
        found = found["within"]
    assert found["body"]["t"] == "x" * 100_000
