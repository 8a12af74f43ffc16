"""The console of a full broker: time to first byte of pages, cost of open pages to a send. Prints JSON.

    .venv/bin/python benchmarks/console.py [--timers 1000000] [--pages 50] [--rounds 3] [--pictures DIR]
                                           [--folder DIR]
    .venv/bin/python benchmarks/console.py --tasks [--audits DIR] [--pictures DIR]

The broker has pending timers, 200 groups, 50 open transactions, 10,000 dead letters. A client sends
`SENDS_A_SECOND` messages of 256 bytes a second.

`first_byte_ms`: each page in turn during the sends, `LOOKS` times.
`open_pages`: the broker's processor time for each send without open pages and with `--pages` of them, in
turn, `--rounds` times. An open page is requested every 5 seconds, as `console.js` does; all belong to one
session, and show the main pages in turn.
`--folder` keeps the store; a later run with the same folder reuses it unchanged.
`--pictures` also writes pictures of the pages by Chromium: all at 1,280 pixels, and the main pages at 390
pixels and dark.

`--tasks` measures instead the effort of ten tasks of an operator, in the console and on the command line
(`parts/console/operator_tasks.py`): clicks (Enter in a field is one), fields, pages, steps that need to
scroll, and seconds without the time of a person; commands and their seconds. `first` is the path from
`tidewheel dev` to a delayed message that was found and cancelled in the console. The audit of a small shop
takes two minutes; `--audits` names a folder of runs to use instead. `--pictures` writes the window before
each step that is not a field.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from parts.console.furnishing import Amounts, furnish
from parts.console.operator_tasks import measure as measure_tasks
from parts.console.pages import MAIN_PAGES, PAGES, Visitor, console, take_pictures
from parts.http_calls import BODY, Server, connected
from parts.percentiles import figures
from parts.serving import serving

SENDS_A_SECOND: Final = 200
EVERY_SECONDS: Final = 5
"""Interval between the requests of an open page (`USUAL_MS` in console.js)."""

STRETCH_SECONDS: Final = 20
LOOKS: Final = 20


@asynccontextmanager
async def sending(port: int) -> AsyncIterator[list[int]]:
    """Send at a constant rate over a separate connection; yield a list with the count of sends."""
    sent, [one] = [0], await connected(port, 1)

    async def send() -> None:
        began = time.monotonic()
        while True:
            await one.post("/api/messages", {"topic": "stopwatch", "body": BODY})
            sent[0] += 1
            await asyncio.sleep(max(0, began + sent[0] / SENDS_A_SECOND - time.monotonic()))

    task = asyncio.ensure_future(send())
    try:
        yield sent
    finally:
        task.cancel()


async def us_each_send(server: Server, port: int, visitor: Visitor, pages: int) -> float:
    """Return the broker's processor time for a send with `pages` open pages, in microseconds."""

    async def stay(number: int) -> None:
        await asyncio.sleep(EVERY_SECONDS * number / pages)
        while True:
            began = time.monotonic()
            await visitor.first_byte_ms(MAIN_PAGES[number % len(MAIN_PAGES)], refresh=True)
            await asyncio.sleep(max(0, began + EVERY_SECONDS - time.monotonic()))

    opened = [asyncio.ensure_future(stay(number)) for number in range(pages)]
    await asyncio.sleep(EVERY_SECONDS)
    async with sending(port) as sent:
        before_us, before = server.busy_us(), sent[0]
        await asyncio.sleep(STRETCH_SECONDS)
        each = (server.busy_us() - before_us) / (sent[0] - before)
    for task in opened:
        assert not task.done(), task.exception()
        task.cancel()
    return each


async def first_bytes(port: int, visitor: Visitor) -> dict[str, Any]:
    """Return figures of the time to first byte of each page, during sends."""
    rows = dict[str, Any]()
    async with sending(port):
        for page in PAGES:
            rows[page] = figures([await visitor.first_byte_ms(page) for _ in range(LOOKS)])
    return rows


async def measure(facts: dict[str, Any], asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Fill a broker unless its store is kept from an earlier run, and measure."""
    server, port = Server(facts["process"]), int(facts["http"].rpartition(":")[2])
    [one] = await connected(port, 1)
    if not (furnished := folder / "furnished").exists():
        began = time.monotonic()
        await furnish(one, Amounts(asked.timers, 200, 50, 10_000))
        furnished.touch()
        print(f"furnished in {time.monotonic() - began:.0f} s", file=sys.stderr)
    with console(facts["http"], folder) as link:
        visitor = await Visitor.entered(link)
        found: dict[str, Any] = {"first_byte_ms": await first_bytes(port, visitor)}
        rounds = [
            [await us_each_send(server, port, visitor, pages) for pages in (0, asked.pages)]
            for _ in range(asked.rounds)
        ]
        alone, beside = (statistics.median(column) for column in zip(*rounds, strict=True))
        found["open_pages"] = {
            "pages": asked.pages,
            "us_each_send_without": round(alone),
            "us_each_send_with": round(beside),
            "ratios": [round(row[1] / row[0], 2) for row in rounds],
        }
        if asked.pictures:
            site = link.partition("/enter")[0]
            await asyncio.to_thread(take_pictures, visitor.cookie, site, asked.pictures)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tasks", action="store_true")
    parser.add_argument("--audits", type=Path)
    asked = parser.parse_args(arguments)
    if asked.tasks:
        with tempfile.TemporaryDirectory() as temporary:
            found = measure_tasks(Path(temporary), asked.audits and asked.audits.absolute(), asked.pictures)
            print(json.dumps(found, indent=2))
        return
    with ExitStack() as stack:
        folder: Path = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        facts = stack.enter_context(serving(folder / "store", "--flush", "async"))
        print(json.dumps(asyncio.run(measure(facts, asked, folder)), indent=2))


if __name__ == "__main__":
    main()
