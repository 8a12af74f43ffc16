"""The figures as a table in Markdown.

A figure is the median of its rounds; a ratio is the median of the rounds' ratios, Tidewheel's to RocketMQ's,
with their minimum and maximum: the speed of a machine varies during a run, but equally for both servers of a
round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from peers_machine import load_text, machine_text

PLACE: Final = "peers"
"""The name of the table's markers in a page (`peers_page`)."""
OURS, THEIRS = "tidewheel", "rocketmq"
HEADERS: Final = {"plain": "", "java": ", Java's header fields"}
BUSY_MAX: Final = 0.8
Round = Mapping[str, float]


def ms(value: float) -> str:
    """Format milliseconds with about two significant digits."""
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f} ms"


class Shown(NamedTuple):
    """Format of a kind of row: its figures, and the compared ones by the name of their ratio."""

    text: Callable[[Round], str]
    ratios: Mapping[str, str]


def rate_text(found: Round) -> str:
    """Format a rate, with processor time and median latency."""
    return f"{found['per_second']:,.0f}/s, {found['server_us']:,.0f} us, p50 {ms(found['p50_ms'])}"


def times_text(found: Round) -> str:
    """Format latencies, with processor time."""
    return f"p50 {ms(found['p50_ms'])}, p99 {ms(found['p99_ms'])}, {found['server_us']:,.0f} us"


def memory_text(found: Round, when: str = "") -> str:
    """Format the resident memory of a process, and the anonymous part."""
    return f"{found[f'{when}resident_mb']:,.0f} MB ({found[f'{when}anonymous_mb']:,.0f} in no file)"


MEMORY_RATIOS: Final = {"resident": "resident_mb", "in no file": "anonymous_mb"}
SHOWN_RATE: Final = Shown(rate_text, {"rate": "per_second", "CPU": "server_us"})
SHOWN: Final[Mapping[str, Shown]] = {
    "single": Shown(times_text, {"p50": "p50_ms", "CPU": "server_us"}),
    "latency": Shown(times_text, {"p50": "p50_ms", "p99": "p99_ms"}),
    "crowd": Shown(
        lambda found: (
            f"stored {found['last_stored_s']:.2f} s, received {found['last_received_s']:.2f} s,"
            f" {found['server_us']:,.0f} us"
        ),
        {"received": "last_received_s", "CPU": "server_us"},
    ),
    "start": Shown(
        lambda found: f"{found['seconds']:.1f} s; {memory_text(found)}; {memory_text(found, 'end_')}",
        {"time": "seconds"} | MEMORY_RATIOS,
    ),
    "start-million": Shown(
        lambda found: f"{found['seconds']:.1f} s; {found['killed_seconds']:.1f} s; {memory_text(found)}",
        {"time": "seconds"} | MEMORY_RATIOS,
    ),
    "kill": Shown(
        lambda found: (
            f"{found['missing']:,.0f} missing, {found['stored_twice']:,.0f} stored twice,"
            f" all after {found['all_received_s']:.0f} s"
        ),
        {},
    ),
}
TITLES: Final = {
    "start": "start, empty; memory when warm; memory after all rows",
    "start-million": "start with 1 M messages; after a kill; memory",
    "kill": "killed in a crowd of 50,000",
}


def table(found: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return the table, followed by notes on the machine, the load and failures."""
    lines = ["| row | ours | RocketMQ | ours / RocketMQ |", "|---|---|---|---|"]
    is_busy = False
    for entry in in_order(found["figures"], [*titles, *TITLES]):
        shown = SHOWN.get(entry["row"].removesuffix("-merged"), SHOWN_RATE)
        servers = entry["rounds"]
        title = {**titles, **TITLES}.get(entry["row"], entry["row"])
        cells = []
        for server in (OURS, THEIRS):
            rounds = servers.get(server, [])
            busy = any(one.get("load_busy", 0) > BUSY_MAX for one in rounds)
            is_busy |= busy
            cells.append(shown.text(middle(rounds)) + " *" * busy if rounds else "")
        compared = ratios(servers, shown.ratios)
        lines.append(
            f"| {title}, {entry['flush']}{HEADERS[entry['headers']]} | {' | '.join([*cells, compared])} |"
        )
    lines += ["", *notes(found, is_busy=is_busy)]
    return "\n".join(lines)


def in_order(figures: Sequence[Any], rows: Sequence[str]) -> list[Any]:
    """Return the figures sorted by flush, header fields and row; those with a single run come last."""
    flushes = list(dict.fromkeys(one["flush"] for one in figures))

    def place(one: Any) -> tuple[int, bool, int, int]:
        row = rows.index(one["row"]) if one["row"] in rows else len(rows)
        return flushes.index(one["flush"]), one["row"] in TITLES, list(HEADERS).index(one["headers"]), row

    return sorted(figures, key=place)


def middle(rounds: Sequence[Round]) -> Round:
    """Return the median of each figure."""
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def ratios(servers: Mapping[str, Sequence[Round]], compared: Mapping[str, str]) -> str:
    """Return the ratios of the rounds measured for both servers."""
    ours, theirs = ({one["round"]: one for one in servers.get(name, [])} for name in (OURS, THEIRS))
    both = sorted(ours.keys() & theirs.keys())
    told = []
    for name, figure in compared.items():
        values = [ours[one][figure] / theirs[one][figure] for one in both if theirs[one][figure]]
        if values:
            told.append(f"{name} {spread(values)}")
    return "; ".join(told)


def spread(values: Sequence[float]) -> str:
    """Format the median of ratios, with minimum and maximum in brackets."""
    return f"{median(values):.2f}" + (f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else "")


def notes(found: Mapping[str, Any], *, is_busy: bool) -> list[str]:
    """Return notes on the machine, the load and failures."""
    machine, options, servers = found["machine"], found["options"], found["servers"]
    what = [f"{name} {facts.get('version') or facts.get('commit')}" for name, facts in servers.items()]
    told = [
        f"{machine['date']}, {' and '.join(what)}; {machine_text(machine)}; rounds: {options['rounds']}, of"
        f" {options['seconds']:g} s a row; {load_text(machine)}."
    ]
    if is_busy:
        told += [
            "",
            f"\\* The load itself used more than {BUSY_MAX:.0%} of a core: it may have been the limit.",
        ]
    failed = [
        f"- {one['row']}, {one['flush']}, {one['server']}, round {one['round']}: {one['why']}"
        for one in found["failures"]
    ]
    return [*told, *(["", "Failed, and left out of the figures:", *failed] if failed else [])]
