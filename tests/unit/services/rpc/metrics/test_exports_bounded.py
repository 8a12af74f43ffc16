"""What a hostile exporter achieves: nothing that cannot be meant is taken, and nothing grows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from commitlog import limits
from services.live.clients import client_metrics
from services.rpc.generated import service_pb2 as service
from services.rpc.metrics.metrics_export import EXPORT_BYTES_MAX, EXPORT_SERIES_MAX, OPENCENSUS, OTLP
from services.rpc.serving.service import CallRefused
from services.rpc.wire.caller import Caller
from tests.endurance.hostile import hostile
from tests.unit.services.rpc.metrics.exporting import (
    CACHED,
    CLIENT,
    GROUPS,
    ROUNDS,
    SEND,
    add,
    agent_request,
    exported,
    gauge,
    histogram,
    metrics_of,
    named,
    there,
)


@pytest.mark.parametrize(
    "request_",
    [
        histogram(named("somebody"), (1, *[0] * 7)),
        histogram(named(topic="none"), (1, *[0] * 7)),
        histogram(named(topic=""), (1, *[0] * 7)),
        histogram(named(consumer_group="none"), (1, *[0] * 7)),
        histogram(named(topic="t" * 1_000), (1, *[0] * 7)),
        histogram(named(consumer_group="g" * 1_000), (1, *[0] * 7)),
        histogram(named(invocation_status="made up"), (1, *[0] * 7)),
        histogram(named(), (1, *[0] * 7), name="made_up"),
        histogram(named(), (1, *[0] * 7), name=CACHED),
        histogram(named(), (1,)),
        histogram(named(), ()),
        histogram(named(), [1] * 1_001, bounds=range(1_000)),
        histogram(named(), (1, *[0] * 7), total=float("nan")),
        histogram(named(), (1, *[0] * 7), total=float("inf")),
        histogram(named(), (1, *[0] * 7), total=-1.0),
        histogram(named(), (1, *[0] * 7), total=1e300),
        gauge(named(invocation_status=""), -1.0),
        gauge(named(invocation_status=""), float("inf")),
    ],
)
def test_what_cannot_be_meant_is_left_out_and_told(play: Any, request_: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        assert await exported(front, request_) == 1
        assert (front.measured.sums(), front.measured.of("client-1")) == ({}, {})

    play(scenario)


def test_other_bounds_are_held_in_those_that_clients_have(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        await exported(front, histogram(named(), (1, 2, 4, 8), bounds=(2, 5, 1_000)))
        [spread] = front.measured.sums().values()
        assert spread.counts == (0, 3, 0, 0, 0, 0, 0, 12)

    play(scenario)


def test_a_client_is_given_so_many_series_and_all_together_so_many(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_metrics, "CLIENT_SERIES_EACH_MAX", 4)
    monkeypatch.setattr(client_metrics, "CLIENT_SERIES_MAX", 10)

    async def scenario(front: Any) -> None:
        callers = [Caller(f"c{number}") for number in range(5)]
        await there(front, *callers)
        left_out = 0
        for caller in callers:
            for number in range(6):
                request = histogram(named(caller.client_id, consumer_group=f"g{number}"), (1, *[0] * 7))
                left_out += await exported(front, request, caller)
        assert left_out == 30 - 10
        assert sum(len(front.measured.of(caller.client_id)) for caller in callers) == 10
        assert len(front.measured.sums()) <= 10
        await front.call("NotifyClientTermination", service.NotifyClientTerminationRequest(), callers[0])
        assert await exported(front, histogram(named("c4"), (1, *[0] * 7)), callers[4]) == 0, "there is room"

    play(scenario)


def test_who_tells_as_it_goes_makes_no_room_for_itself(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "CLIENT_SERIES_MAX", 2)

    async def scenario(front: Any) -> None:
        await there(front)
        await exported(front, histogram(named(), (1, *[0] * 7)))
        await front.call("NotifyClientTermination", service.NotifyClientTerminationRequest(), CLIENT)
        for _ in range(3):
            taken = [
                1 - await exported(front, histogram(named(consumer_group=group), (1, *[0] * 7)))
                for group in GROUPS
            ]
        assert sum(taken) == 1, "one beside the one that it had told before"
        await there(front)
        assert await exported(front, histogram(named(), (2, *[0] * 7))) == 0

    play(scenario)


def test_an_export_of_any_size_is_answered(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        request = histogram(named(), (1, *[0] * 7))
        request.resource_metrics[0].schema_url = "x" * EXPORT_BYTES_MAX
        with pytest.raises(CallRefused, match="at most"):
            await exported(front, request)
        assert front.observed[-1] == (OTLP, "BAD_REQUEST")

    play(scenario)


def test_no_more_of_an_export_is_looked_at_than_a_process_sends(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        request = histogram(named(), (1, *[0] * 7))
        points = request.resource_metrics[0].scope_metrics[0].metrics[0].histogram.data_points
        for _ in range(2 * EXPORT_SERIES_MAX):
            points.add()
        assert await exported(front, request) == EXPORT_SERIES_MAX - 1

    play(scenario)


@pytest.mark.parametrize("name", [OTLP, OPENCENSUS])
def test_hostile_values_are_answered_and_bounded(play: Any, name: str) -> None:
    chance = Random(name)

    def request(kind: Any) -> Any:
        """A hostile request that has a metric's name, and is of a client that is there."""
        made = hostile(kind, chance)
        metrics = made.metrics if name == OPENCENSUS else metrics_of(made)
        for metric in metrics:
            described = metric.metric_descriptor if name == OPENCENSUS else metric
            described.name = chance.choice((SEND, CACHED))
            if name == OPENCENSUS:
                metric.CopyFrom(
                    agent_request(named(), (1, *[0] * 7)).metrics[0] if chance.random() < 0.1 else metric
                )
            for point in metric.histogram.data_points if name == OTLP else ():
                add(point, named())
        return made

    async def scenario(front: Any) -> None:
        await there(front)
        rpc = front.rpcs[name]
        for _ in range(ROUNDS):
            if name == OTLP:
                with suppress(CallRefused):  # some are too large
                    await exported(front, request(rpc.request))
                continue

            async def once() -> AsyncIterator[Any]:
                yield request(rpc.request)

            with suppress(CallRefused):
                assert [one async for one in front.stream(name, once())] == []
        assert not any(code == "INTERNAL_SERVER_ERROR" for _, code in front.observed)
        assert len(front.measured.of("client-1")) <= limits.CLIENT_SERIES_EACH_MAX

    play(scenario)
