"""A broker process on a disk that fails, fills, shortens and slows, killed and cut off: no promise is broken.

    .venv/bin/python -m pytest tests/endurance/test_sick_disk.py --deaths 100 -s

Between two deaths the disk is well for a while and sick for a while, in one of the ways of `SICKNESSES`.
Deaths are `kill -9`, a power cut at any moment, or one between any two calls on the disk, in starts too. A
start on a sick disk may be refused, with one sentence; on a disk that is well it must succeed. Meanwhile
clients note what they are told (`sick_load`), and at the end `histories` judges it. Prints its seed and
figures as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from tests.endurance import sick_disk
from tests.endurance.sick_disk import KINDS, SickDisk
from tests.endurance.sick_load import HALVES, LATER, LINES, PLAIN, Load

SEGMENT_BYTES = 5 << 20
START_SECONDS = 90.0
WELL_SECONDS = 60.0
FAR_SECONDS = 32.0
FAR_DEATHS_MIN = 10
"""A shorter run sets no far timers, for which it would only wait."""
RATE_PPM = (3_000, 20_000, 200_000)
SICKNESSES = (
    "well",
    "fails",
    "fails at syncs",
    "fails at reads",
    "is full",
    "is short",
    "is slow",
    "everything",
)
DEATHS = ("kill -9", "power cut", "between two calls")
TOPICS = {PLAIN: "NORMAL", LATER: "DELAY", LINES: "FIFO", HALVES: "TRANSACTION"}
OPTIONS = (
    *("--segment-bytes", str(SEGMENT_BYTES), "--invisible-ms-min", "500", "--attempts-max", "1000"),
    *("--housekeeping-ms", "500"),
)
RETENTION = ("--retain-bytes", str(4 * SEGMENT_BYTES))
"""With odd seeds; the disk then does not tell that it is full, for which retention gives up who lags."""


class Stage:
    """A broker that dies, its disk, and what happened."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.store, self._ready, self._log = folder / "store", folder / "ready", folder / "log"
        self.disk = SickDisk(sick_disk.build(folder), self.store, folder / "control")
        self.options = [*OPTIONS, *(RETENTION if seed % 2 else ())]
        self.disk.set(seed=seed, power=1, tell_room=1 - seed % 2)
        self.listen = self.http = "127.0.0.1:0"
        self.process: subprocess.Popen[bytes] | None = None
        self.counts: Counter[str] = Counter()
        self._sicknesses: list[str] = []
        self.wrong: list[str] = []
        self.start_seconds: list[float] = []

    def launch(self) -> None:
        """Start a broker process; whether it comes up is another thing."""
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.endurance.small_checkpoint_broker"]
        where = ["--store", str(self.store), "--listen", self.listen, "--http", self.http]
        more = ["--ready-file", str(self._ready), *self.options]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "serve", *where, *more], stderr=log, stdout=log, env=self.disk.environment()
            )

    async def came_up(self) -> bool:
        """Wait until it serves or has ended."""
        assert self.process is not None
        ends = time.monotonic() + START_SECONDS
        while self.process.poll() is None:
            if self._ready.exists() and (facts := self._ready.read_text()):
                self.listen, self.http = json.loads(facts)["listen"], json.loads(facts)["http"]
                return True
            if time.monotonic() > ends:
                self.wrong.append("a start hung")
                self.process.kill()
            await asyncio.sleep(0.02)
        return False

    async def start_well(self) -> None:
        """Start on a disk that is well: it must come up."""
        self.disk.heal()
        began, said = time.monotonic(), self._log.stat().st_size if self._log.exists() else 0
        self.launch()
        if not await self.came_up():
            assert self.process is not None
            tail = self._log.read_text(errors="replace")[said:][-3_000:]
            raise AssertionError(f"cannot start on a disk that is well: {self.process.returncode}\n{tail}")
        self.start_seconds.append(time.monotonic() - began)

    async def start_sick(self) -> bool:
        """Start while the disk fails or the process dies; returns whether it serves all the same."""
        said = self._log.stat().st_size
        if self.chance.random() < 0.6:
            self.disk.set(die_after=self.chance.randint(1, 250), armed=1)
        else:
            self.fall_ill(self.chance.choice(SICKNESSES[1:]))
        self.launch()
        if await self.came_up():
            self.counts["sick starts that served"] += 1
            return True
        assert self.process is not None
        if self.process.returncode < 0:
            self.counts["deaths in starts"] += 1
            if self.process.returncode != -9:
                self.wrong.append(f"a start ended by signal {-self.process.returncode}")
            return False
        self.counts["starts refused"] += 1
        text = self._log.read_text(errors="replace")[said:]
        if "Traceback" in text or "\nTW-" not in f"\n{text}":
            self.wrong.append(f"a refused start says: {text[-2_000:]}")
        return False

    def next_sickness(self) -> str:
        """Return another way to be sick: each comes before one comes again."""
        if not self._sicknesses:
            self._sicknesses = self.chance.sample(SICKNESSES, len(SICKNESSES))
        return self._sicknesses.pop()

    def fall_ill(self, sickness: str) -> None:
        """Make the disk sick in one way."""
        ppm = self.chance.choice(RATE_PPM)
        numbers: dict[str, int] = {}
        if sickness in ("fails", "everything"):
            numbers |= dict.fromkeys(KINDS, ppm)
        if sickness == "fails at syncs":
            numbers |= {"sync": max(ppm, 20_000)}
        if sickness == "fails at reads":
            numbers |= {"read": ppm, "open": ppm}
        if sickness in ("is full", "everything"):
            numbers |= {"full": 1, "room": self.chance.choice((0, 100_000, SEGMENT_BYTES, 2 * SEGMENT_BYTES))}
        if sickness in ("is short", "everything"):
            numbers |= {"short_ppm": 300_000}
        if sickness in ("is slow", "everything"):
            numbers |= {"slow_ppm": 100_000, "slow_us_max": 50_000}
        self.counts[sickness] += 1
        self.disk.set(**numbers, armed=1)

    async def die(self) -> None:
        """End the process as no one would wish, wherever it is."""
        assert self.process is not None
        if self.process.poll() is not None:
            tail = self._log.read_text(errors="replace")[-3_000:]
            self.wrong.append(f"the broker ended by itself: {self.process.returncode}\n{tail}")
            return
        how = self.chance.choice(DEATHS)
        self.counts[how] += 1
        if how == "power cut":
            self.disk["die"] = 1
        elif how == "between two calls":
            self.disk.set(die_after=self.chance.randint(1, 60), armed=1)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, 3 if how != "kill -9" else 0)
        self.process.kill()
        self.process.wait()
        self.disk.heal()

    def readiness(self) -> tuple[int, str]:
        """Return what /readyz says."""
        try:
            with urlopen(f"http://{self.http}/readyz", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()
        except (URLError, OSError) as error:
            return 0, str(error)

    async def is_well_again(self) -> None:
        """With the disk well the broker serves again by itself."""
        self.disk.heal()
        ends, said = time.monotonic() + WELL_SECONDS, (0, "")
        while said[1] != "ready\n":
            if time.monotonic() > ends:
                self.wrong.append(f"not ready on a disk that is well again: {said}")
                return
            said = await asyncio.to_thread(self.readiness)
            await asyncio.sleep(0.05)
        self.counts["recoveries without a restart"] += 1

    def create_topics(self) -> None:
        for name, kind in TOPICS.items():
            body = json.dumps({"name": name, "message_type": kind}).encode()
            kind_of_body = {"Content-Type": "application/json"}
            urlopen(Request(f"http://{self.http}/api/topics", body, kind_of_body)).close()

    def look_at_log(self) -> None:
        """No failure of the disk is a bug, and none ends in a traceback."""
        text = self._log.read_text(errors="replace")
        for told in ("Traceback", "bug while answering", "AssertionError"):
            if told in text:
                at = text.index(told)
                self.wrong.append(f"{text.count(told)} x {told}: {text[max(0, at - 500) : at + 3_000]}")

    def verify(self) -> str:
        """Prove the store offline."""
        command = [sys.executable, "-m", "services.cli.main", "store", "verify", "--store", str(self.store)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stdout + done.stderr


async def play(stage: Stage, load: Load, deaths: int) -> None:
    tasks = [asyncio.create_task(load.go_on(step)) for step in (*load.senders(), *load.receivers())]
    died = 0
    while died < deaths:
        await asyncio.sleep(stage.chance.uniform(0.3, 1.0))
        stage.fall_ill(stage.next_sickness())
        await asyncio.sleep(stage.chance.uniform(0.2, 1.2))
        if stage.chance.random() < 0.3:
            await stage.is_well_again()
        await stage.die()
        died += 1
        while died < deaths and stage.chance.random() < 0.4:
            if await stage.start_sick():
                await stage.die()
            died += 1
        await stage.start_well()
    load.is_late = True
    await asyncio.sleep(1)
    load.is_over = True
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, BaseException):
            stage.wrong.append(f"a client ended: {ended!r}")


async def drain(stage: Stage, load: Load) -> None:
    """Receive what is still to come; leases run out, and far timers come due meanwhile."""
    load.is_over = False
    tasks = [asyncio.create_task(load.go_on(step)) for step in load.receivers()]
    seen, still_since = 0, time.monotonic()
    while time.monotonic() - still_since < (FAR_SECONDS + 10 if load.history.missing() else 4):
        await asyncio.sleep(0.5)
        if len(load.history.delivered) > seen:
            seen, still_since = len(load.history.delivered), time.monotonic()
    load.is_over = True
    await asyncio.gather(*tasks)
    assert stage.process is not None
    stage.process.terminate()
    if stage.process.wait(60):
        stage.wrong.append(f"the last stop was not clean: {stage.process.returncode}")


async def run(stage: Stage, seed: int, deaths: int) -> Load:
    try:
        await stage.start_well()
        stage.create_topics()
        load = Load(stage.listen, seed)
        load.is_late = deaths < FAR_DEATHS_MIN
        try:
            await asyncio.gather(*(load.receive(topic, 0.1) for topic in TOPICS))
            await play(stage, load, deaths)
            await drain(stage, load)
        finally:
            await load.close()
    finally:  # a process that is left would write into whatever store is at its path later
        if stage.process is not None:
            stage.process.kill()
            stage.process.wait()
    return load


def test_nothing_that_clients_were_told_is_broken_by_a_sick_disk(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    deaths, seed = pytestconfig.getoption("--deaths"), pytestconfig.getoption("--disk-seed")
    print(f"seed {seed}, {deaths} deaths")
    try:
        stage = Stage(tmp_path, seed)
    except sick_disk.NoCompiler:
        pytest.skip("the sick disk is a C library, and there is no compiler")
    began = time.monotonic()
    load = asyncio.run(run(stage, seed, deaths))
    stage.look_at_log()
    damage = stage.verify()
    history = load.history
    wrong = [*stage.wrong, *history.violations(), *([f"verify: {damage}"] if damage else [])]
    figures: dict[str, Any] = {
        "seed": seed,
        "deaths": deaths,
        "seconds": round(time.monotonic() - began, 1),
        "what_happened": dict(stage.counts),
        "disk": stage.disk.counters(),
        "calls": dict(sorted(history.outcomes.items())),
        "delivered": len(history.delivered),
        "longest_start_seconds": round(max(stage.start_seconds), 2),
        "violations": len(wrong),
    }
    print(json.dumps(figures, indent=2))
    assert not wrong, "\n".join(wrong[:20])
