"""Check-backs by bytes: who is not there costs no read, and who reads slowly holds little in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitlog import limits
from services.rpc.clients.session import Stream
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code, Settings
from services.rpc.generated.service_pb2 import TelemetryCommand
from services.rpc.wire.caller import Caller
from tests.memory_disk import MemoryDisk
from tests.unit.services.rpc.clients.test_clients import PRODUCER, Telemetry

HALVES, BODY_BYTES = 20, 1_000


@pytest.fixture
def log_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long each read of the log was."""
    reads: list[int] = []
    read = MemoryDisk.read

    def counting(self: MemoryDisk, path: str, position: int, length: int) -> bytes:
        if path.startswith("commitlog/"):
            reads.append(length)
        return read(self, path, position, length)

    monkeypatch.setattr(MemoryDisk, "read", counting)
    return reads


async def send_halves(front: Any) -> None:
    for number in range(HALVES):
        body = f"{number:03}".encode().ljust(BODY_BYTES, b".")
        reply = await front.send("declared", body, message_type="TRANSACTION", message_id=f"M{number}")
        assert reply.status.code == Code.OK


async def asked(telemetry: Telemetry) -> str:
    command = (await telemetry.next()).recover_orphaned_transaction_command
    return str(command.message.body[:3].decode())


def test_halves_without_a_producer_are_neither_read_nor_looked_at_until_one_comes(
    play: Any, log_reads: list[int]
) -> None:
    async def scenario(front: Any) -> None:
        await send_halves(front)
        front.pass_time(limits.CHECK_IMMUNITY_MS)
        log_reads.clear()
        due_ms = front.live.core._scheduler.next_due_ms()
        for _ in range(30):
            front.pass_time(1_000)
        assert log_reads == []
        assert front.live.core._scheduler.next_due_ms() == due_ms, "no half has a timer"
        telemetry = Telemetry(front, "late")
        await telemetry.introduce(PRODUCER)
        front.pass_time(0)
        assert sorted([await asked(telemetry) for _ in range(HALVES)]) == [f"{n:03}" for n in range(HALVES)]
        assert front.live.core.statistics.checks_asked["declared"] == HALVES

    play(scenario)


@pytest.mark.parametrize("says_first", [False, True], ids=["routes first", "settings first"])
def test_a_producer_that_sends_nothing_and_declares_nothing_is_asked_once_it_asks_for_routes(
    play: Any, says_first: bool
) -> None:
    """Python's client declares no topic, and after a restart or a takeover may wait without sending."""
    silent = Settings(client_type="PRODUCER")

    async def scenario(front: Any) -> None:
        await send_halves(front)
        front.pass_time(limits.CHECK_IMMUNITY_MS)
        telemetry = Telemetry(front, "silent")
        route = service.QueryRouteRequest(topic=wire.Resource(name="declared"))
        if says_first:
            await telemetry.introduce(silent)
        await front.call("QueryRoute", route, Caller("silent", language="PYTHON", seconds_left=1.0))
        if not says_first:
            await telemetry.introduce(silent)
        front.pass_time(0)
        assert sorted([await asked(telemetry) for _ in range(HALVES)]) == [f"{n:03}" for n in range(HALVES)]

    play(scenario)


def test_a_producer_that_does_not_read_is_asked_as_much_as_its_stream_holds(
    play: Any, monkeypatch: pytest.MonkeyPatch, log_reads: list[int]
) -> None:
    monkeypatch.setattr(limits, "COMMANDS_WAITING_BYTES_MAX", 5 * BODY_BYTES)

    async def scenario(front: Any) -> None:
        await send_halves(front)
        telemetry = Telemetry(front, "slow")
        await telemetry.introduce(PRODUCER)
        log_reads.clear()
        front.pass_time(limits.CHECK_IMMUNITY_MS)
        front.pass_time(0)
        assert 5 * BODY_BYTES <= front.sessions.backlog.waiting_bytes < 6.5 * BODY_BYTES
        assert len(log_reads) <= 6, "what is not asked about is not read"
        got = []
        while len(got) < HALVES:
            got.append(await asked(telemetry))
            front.pass_time(0)
        assert sorted(got) == [f"{n:03}" for n in range(HALVES)], "each is asked about, and once"
        assert front.sessions.backlog.waiting_bytes == 0

    play(scenario)


def stream_of(sessions: Sessions, client_id: str) -> Stream:
    return sessions.open_stream(Caller(client_id))


COMMAND = TelemetryCommand(status={"message": "x" * 98})
"""Of 102 bytes."""


def test_a_stream_takes_a_command_while_less_waits_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    size = COMMAND.ByteSize()
    monkeypatch.setattr(limits, "COMMANDS_WAITING_BYTES_MAX", 2 * size)
    stream = stream_of(Sessions(lambda: 0), "c")
    assert [stream.write(COMMAND) for _ in range(3)] == [True, True, False]
    monkeypatch.setattr(limits, "COMMANDS_WAITING_BYTES_MAX", 2 * size + 1)
    assert [stream.write(COMMAND) for _ in range(2)] == [True, False]


def test_all_streams_together_have_a_bound_and_whoever_had_no_room_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = COMMAND.ByteSize()
    monkeypatch.setattr(limits, "COMMANDS_WAITING_ALL_BYTES_MAX", 2 * size)
    sessions = Sessions(lambda: 0)
    told: list[str] = []
    sessions.set_room(lambda session: told.append(session.client_id))
    first, second, third = (stream_of(sessions, name) for name in ("first", "second", "third"))
    assert [first.write(COMMAND), second.write(COMMAND), third.write(COMMAND)] == [True, True, False]
    assert (sessions.backlog.waiting_bytes, told) == (2 * size, [])
    first.write(None)
    sessions.close_stream(first)
    assert (sessions.backlog.waiting_bytes, told) == (size, ["third"])
    assert third.write(COMMAND)
    sessions.close_stream(second)
    sessions.close_stream(third)
    assert (sessions.backlog.waiting_bytes, told) == (0, ["third"])


def test_a_stream_can_be_ended_though_it_is_full(
    monkeypatch: pytest.MonkeyPatch, play: Callable[..., None]
) -> None:
    monkeypatch.setattr(limits, "COMMANDS_WAITING_MAX", 2)

    async def scenario(front: Any) -> None:
        stream = stream_of(front.sessions, "c")
        assert [stream.write(COMMAND) for _ in range(3)] == [True, True, False]
        assert stream.write(None)
        assert not stream.write(COMMAND), "nothing comes behind the end"
        assert [await stream.next() for _ in range(3)] == [COMMAND, COMMAND, None]

    play(scenario)
