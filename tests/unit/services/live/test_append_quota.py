"""Back-pressure: what callers append waits while too much waits for the disk, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from commitlog import limits
from services.live.append_quota import AppendQuota
from services.live.errors import DiskBehind

Scenario = Callable[["Disk"], Awaitable[None]]


class Disk:
    """So many bytes wait for it, and those who are let in append theirs."""

    def __init__(self) -> None:
        self.unflushed = 0
        self.room = AppendQuota(lambda: self.unflushed)
        self.done: list[str] = []

    async def append(self, name: str, new_bytes: int) -> None:
        await self.room.wait(new_bytes)
        self.unflushed += new_bytes
        self.done.append(name)

    def begin(self, name: str, new_bytes: int) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self.append(name, new_bytes))

    def flush(self) -> None:
        self.unflushed = 0
        self.room.admit_waiting()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    monkeypatch.setattr(limits, "CALLERS_UNFLUSHED_BYTES_MAX", 100)
    monkeypatch.setattr(limits, "CALLERS_WAITING_BYTES_MAX", 150)
    monkeypatch.setattr(limits, "CALLER_WAITING_BYTES", 0)

    def run(scenario: Scenario) -> None:
        async def on_stage() -> None:
            await scenario(Disk())

        asyncio.run(asyncio.wait_for(on_stage(), 60))

    return run


def test_what_fits_goes_at_once_and_one_byte_more_waits(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.append("a", 60)
        await disk.append("b", 40)
        assert not disk.room.has_room_for(1)
        waits = disk.begin("c", 1)
        await turns()
        assert disk.done == ["a", "b"]
        disk.flush()
        await waits
        assert disk.done == ["a", "b", "c"]

    play(scenario)


def test_what_is_larger_than_the_room_goes_alone(play: Callable[[Scenario], None]) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.append("small", 1)
        large, later = disk.begin("large", 101), disk.begin("later", 1)
        await turns()
        assert disk.done == ["small"], "nobody passes the large one by, or it had to wait for ever"
        disk.flush()
        await turns()
        assert disk.done == ["small", "large"]
        disk.flush()
        await asyncio.gather(large, later)

    play(scenario)


def test_the_line_has_a_bound_and_its_refusal_says_what_to_do(play: Callable[[Scenario], None]) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.append("first", 100)
        line = [disk.begin("x", 75), disk.begin("y", 75)]
        await turns()
        with pytest.raises(DiskBehind, match="Send again after a pause"):
            await disk.append("one more", 1)
        disk.flush()
        await turns()
        disk.flush()
        await asyncio.gather(*line)
        await disk.append("again", 1)

    play(scenario)


def test_who_leaves_the_line_or_appends_nothing_lets_the_next_in(
    play: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CALLERS_WAITING_BYTES_MAX", 400)

    async def scenario(disk: Disk) -> None:
        await disk.append("first", 100)

        async def refused() -> None:
            await disk.room.wait(100)  # and its verb is refused

        gives_up, nothing = disk.begin("gone", 100), asyncio.ensure_future(refused())
        let_in_and_gone, last = disk.begin("late", 100), disk.begin("last", 100)
        await turns()
        gives_up.cancel()
        await turns()
        disk.flush()
        await nothing
        let_in_and_gone.cancel()
        await asyncio.wait_for(last, 60)
        assert disk.done == ["first", "last"]
        assert (disk.room._promised_bytes, disk.room._waiting_bytes, len(disk.room._line)) == (0, 0, 0)

    play(scenario)
