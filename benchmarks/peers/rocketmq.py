"""Comparison with Apache RocketMQ: the same rows by one load, in turns. Prints JSON, a table on stderr.

    .venv/bin/python benchmarks/peers/rocketmq.py [--rounds 5] [--seconds 2] [--rows send,receive]
                                                  [--flush async] [--only ours|rocketmq] [--long [kill]]
                                                  [--write docs/performance.md]
    .venv/bin/python benchmarks/peers/rocketmq.py --read figures.json --write docs/performance.md

The command fetches RocketMQ with Maven (into Maven's own repository, or `--maven-repository`), starts proxy
and broker in one JVM and `tidewheel serve`, warms both, and runs every row for one and then the other,
RocketMQ first in every second round. A JVM compiles at run time: with sends alone it takes 90 s (`--warm`)
to reach four times its initial rate, so a long warm-up is needed. Servers that are not measured are stopped
meanwhile (`peers_servers`). The last round (`--java-rounds`) uses the header fields of RocketMQ's Java
client, new request ids and dates included.

Rows: send, send-tls, single, many, delayed, receive, receive-each, crowd, latency, half; with `--long`, which
takes 14 minutes more, also start-million and kill. receive-merged, receive-each-merged, crowd-merged and
latency-merged are the rows without `-merged`, compared with a second RocketMQ started with
`enablePopBufferMerge=true`; only with `--flush sync`. Bodies have 256 bytes, messages a key and two
properties, topics 8 queues. Figures of a run with failed calls are left out, the failure is reported, and the
exit code is 1.

It needs Linux, Maven, a JDK of 17 or newer, 6 GB of memory and 20 GB of disk; RocketMQ accepts no messages on
a disk that is over 85 % full. On two idle cores five rounds take 35 minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[2]))

from peers_command import check_disk, end_by_signals, names_of, reported, tell
from peers_fields import CHOICES
from peers_http2 import LoadFailed
from peers_long import LONG
from peers_machine import machine_facts
from peers_rocketmq import RocketMq, class_path
from peers_rows import ROWS, Figures, Row, measure, memory
from peers_servers import CannotRun, Server, Tidewheel
from peers_table import PLACE, table

FLUSHES: Final = ("async", "sync")
ONLY: Final = {"ours": "tidewheel", "rocketmq": "rocketmq"}
WARM_SECONDS: Final = 2.0
FAILURES: Final = (LoadFailed, TimeoutError, OSError)
DISK_USED_MAX, DISK_FREE_BYTES, MEMORY_BYTES = 0.85, 20 << 30, 6 << 30
JAVA_MIN: Final = 17


class Bench:
    """The measurements of a run, with their figures and failures."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self.figures: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self._lines: dict[tuple[str, ...], dict[str, Any]] = {}
        self._warm: dict[tuple[str, Server], Figures] = {}

    async def run(self, folder: Path) -> None:
        """Measure everything chosen by the options."""
        classes = class_path(self._given.maven_repository) if self._given.only != "ours" else ""
        for flush in self._given.flush:
            servers: list[Server] = []
            if self._given.only != "rocketmq":
                servers.append(Tidewheel(folder / f"tidewheel-{flush}", flush))
            if self._given.only != "ours":
                servers.append(RocketMq(folder / f"rocketmq-{flush}", flush, classes))
            try:
                await self._of_flush(flush, servers)
                if flush == "sync" and self._given.only != "ours":
                    merging = RocketMq(folder / "rocketmq-merging", flush, classes, merges_pops=True)
                    await self._of_merged(flush, servers, merging)
            finally:
                for server in servers:
                    server.kill()
                    shutil.rmtree(server.folder, ignore_errors=True)

    async def _of_flush(self, flush: str, servers: Sequence[Server]) -> None:
        await self._start(flush, servers)
        groups = [self._rows(is_last=False), self._rows(is_last=True)]
        if any(groups) or self._given.long:
            await self._compile(flush, servers)
        for rows in filter(None, groups):
            await self._of_rows(flush, rows, servers)
        for server in servers:
            warm = self._warm.get((flush, server)) or memory(server)
            found = {"seconds": server.start_seconds} | warm | memory(server, "end_")
            self._add(flush, "plain", "start", server, 1, found)
        for name in self._given.long:
            for server in servers:
                await self._long(flush, name, server)

    async def _of_merged(self, flush: str, servers: list[Server], merging: RocketMq) -> None:
        """Measure the rows of a RocketMQ that merges pops; it replaces the one that does not."""
        rows = self._rows(merges_pops=True)
        if not rows:
            return
        for server in [one for one in servers if isinstance(one, RocketMq)]:
            server.kill()
            servers.remove(server)
            shutil.rmtree(server.folder, ignore_errors=True)
        servers.append(merging)
        await self._start(flush, [merging])
        await self._compile(flush, [merging])
        await self._of_rows(flush, rows, servers)

    def _rows(self, *, is_last: bool = False, merges_pops: bool = False) -> dict[str, Row]:
        """Return the chosen rows that are measured together."""
        rows = {name: ROWS[name] for name in self._given.rows}
        return {
            name: row
            for name, row in rows.items()
            if (row.is_last, row.merges_pops) == (is_last, merges_pops)
        }

    async def _start(self, flush: str, servers: Sequence[Server]) -> None:
        for server in servers:
            tell(f"{flush}: starting {server.name}")
            await server.start()
            self.facts[server.name] = server.facts()
            server.freeze()

    async def _compile(self, flush: str, servers: Sequence[Server]) -> None:
        for server in servers:
            if server.is_compiled_as_it_runs and self._given.warm:
                tell(f"{flush}: {self._given.warm:g} s of sends, for {server.name} to compile what it runs")
                await server.thaw()
                try:
                    await measure(ROWS["send"], server, "plain", self._given.warm)
                except FAILURES as error:
                    self._fail(flush, "plain", "send", server, 0, error)
                server.freeze()

    async def _of_rows(self, flush: str, rows: dict[str, Row], servers: Sequence[Server]) -> None:
        for server in servers:
            tell(f"{flush}: warming {server.name}")
            await server.thaw()
            for _ in range(server.warm_turns):
                for name, row in rows.items():
                    try:
                        await measure(row, server, "plain", WARM_SECONDS, is_warming=True)
                    except FAILURES as error:
                        self._fail(flush, "plain", name, server, 0, error)
            self._warm.setdefault((flush, server), memory(server))
            server.freeze()
        for kind, turn in self._turns():
            for name, row in rows.items():
                for server in servers if turn % 2 else reversed(servers):
                    await self._once(flush, kind, name, row, server, turn)

    def _turns(self) -> Iterator[tuple[str, int]]:
        for kind, rounds in zip(CHOICES, (self._given.rounds, self._given.java_rounds), strict=True):
            for turn in range(1, rounds + 1):
                yield kind, turn

    async def _once(self, flush: str, kind: str, name: str, row: Row, server: Server, turn: int) -> None:
        os.sync()
        await server.thaw()
        try:
            found = await measure(row, server, kind, self._given.seconds)
        except FAILURES as error:
            self._fail(flush, kind, name, server, turn, error)
        else:
            tell(f"{flush}, {kind}, round {turn}: {name}, {server.name}: {found}")
            self._add(flush, kind, name, server, turn, found)
        server.freeze()

    async def _long(self, flush: str, name: str, server: Server) -> None:
        await server.thaw()
        tell(f"{flush}: {name}, {server.name}")
        try:
            self._add(flush, "plain", name, server, 1, await LONG[name](server))
        except FAILURES as error:
            self._fail(flush, "plain", name, server, 1, error)
        server.freeze()

    def _add(
        self, flush: str, kind: str, row: str, server: Server, turn: int, found: dict[str, float]
    ) -> None:
        line = self._lines.get((flush, kind, row))
        if line is None:
            line = {"row": row, "flush": flush, "headers": kind, "rounds": {}}
            self._lines[flush, kind, row] = line
            self.figures.append(line)
        line["rounds"].setdefault(server.name, []).append({"round": turn} | found)

    def _fail(self, flush: str, kind: str, row: str, server: Server, turn: int, error: Exception) -> None:
        why = str(error) or f"it took too long ({type(error).__name__})"
        tell(f"FAILED: {flush}, {kind}, round {turn}: {row}, {server.name}: {why}")
        where = {"flush": flush, "headers": kind, "row": row, "server": server.name, "round": turn}
        self.failures.append(where | {"why": why})


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Return all figures, with the machine, the options and the servers."""
    end_by_signals()
    before, bench = os.getloadavg()[0], Bench(given)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tidewheel-peers-") as folder:
        check_room(Path(folder), given)
        await bench.run(Path(folder))
    options = {
        "rounds": given.rounds,
        "java_rounds": given.java_rounds,
        "seconds": given.seconds,
        "warm_seconds": given.warm,
    }
    return {
        "machine": machine_facts(before),
        "options": options,
        "servers": bench.facts,
        "figures": bench.figures,
        "failures": bench.failures,
    }


def check_room(folder: Path, given: argparse.Namespace) -> None:
    """Raise `CannotRun` if disk space, memory or the version of Java are insufficient."""
    check_disk(folder, DISK_FREE_BYTES, DISK_USED_MAX if given.only != "ours" else 1.0)
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    if available and int(available[1]) * 1024 < MEMORY_BYTES and given.only != "ours":
        raise CannotRun(
            f"{int(available[1]) >> 20} GB of memory are free; RocketMQ's heap and the rest need 6."
        )
    if given.only == "ours":
        return
    if shutil.which("java"):
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
        version = re.search(r'version "(\d+)', said)
        if version and int(version[1]) < JAVA_MIN:
            raise CannotRun(
                f"Java is {version[1]}; put a JDK of {JAVA_MIN} or newer first in PATH (Debian:"
                " openjdk-17-jdk-headless), or use --only ours."
            )


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--java-rounds", type=int, default=1, help="rounds with the Java client's header fields"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of a row that has no end of its own")
    parser.add_argument("--warm", type=float, default=90.0, help="seconds of sends before RocketMQ counts")
    parser.add_argument("--rows", type=names_of(list(ROWS)), default=list(ROWS), help="with commas")
    parser.add_argument("--flush", type=names_of(FLUSHES), default=list(FLUSHES))
    parser.add_argument("--only", choices=ONLY)
    long = names_of(list(LONG))
    parser.add_argument(
        "--long", nargs="?", type=long, const=list(LONG), default=[], help="slow rows, or all"
    )
    parser.add_argument("--folder", type=Path, help="where both keep their stores; else a temporary folder")
    parser.add_argument("--maven-repository", type=Path, help="where Maven keeps the jars; else in ~/.m2")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table into its place in this page"
    )
    parser.add_argument(
        "--read", type=Path, metavar="JSON", help="measure nothing: make the table of these figures"
    )
    return parser.parse_args()


def main() -> int:
    """Measure or read figures, and write the table; return the exit code."""
    titles = {name: row.title for name, row in ROWS.items()}
    return reported(arguments(), measured, lambda found: table(found, titles), PLACE)


if __name__ == "__main__":
    sys.exit(main())
