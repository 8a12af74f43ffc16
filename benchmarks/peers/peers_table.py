"""The figures as a table in Markdown, and its place in a page.

A figure is the middle of its rounds; a ratio is the middle of the rounds' ratios, ours to RocketMQ's, with
the least and the most of them: a machine changes its speed while it measures, for both of a round alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

BEGINS, ENDS = "<!-- benchmarks/peers: begins -->", "<!-- benchmarks/peers: ends -->"
OURS, THEIRS = "tidewheel", "rocketmq"
HEADERS: Final = {"plain": "", "java": ", Java's header fields"}
BUSY_MAX: Final = 0.8
Round = Mapping[str, float]


def ms(value: float) -> str:
    """Write milliseconds, with two digits that count."""
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:,.{digits}f} ms"


class BadPage(Exception):
    """The page has no place for the table; the text says what to do."""


class Shown(NamedTuple):
    """How a kind of row is written: its figures, and what of them is compared under which name."""

    text: Callable[[Round], str]
    ratios: Mapping[str, str]


def rate_text(found: Round) -> str:
    """Write a rate."""
    return f"{found['per_second']:,.0f}/s, {found['server_us']:,.0f} us, p50 {ms(found['p50_ms'])}"


def times_text(found: Round) -> str:
    """Write how long it took."""
    return f"p50 {ms(found['p50_ms'])}, p99 {ms(found['p99_ms'])}, {found['server_us']:,.0f} us"


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
        lambda found: f"{found['seconds']:.1f} s, {found['resident_mb']:,.0f} MB",
        {"time": "seconds", "memory": "resident_mb"},
    ),
    "start-million": Shown(
        lambda found: (
            f"{found['seconds']:.1f} s; {found['killed_seconds']:.1f} s; {found['resident_mb']:,.0f} MB"
        ),
        {"time": "seconds", "memory": "resident_mb"},
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
    "start": "start, empty; memory when warm",
    "start-million": "start with 1 M messages; after a kill; memory",
    "kill": "killed in a crowd of 50,000",
}


def table(found: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return the table, and notes on the machine, the load and failures below."""
    lines = ["| row | ours | RocketMQ | ours / RocketMQ |", "|---|---|---|---|"]
    is_busy = False
    for entry in found["figures"]:
        shown = SHOWN.get(entry["row"], SHOWN_RATE)
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


def middle(rounds: Sequence[Round]) -> Round:
    """Return the middle of each figure."""
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def ratios(servers: Mapping[str, Sequence[Round]], compared: Mapping[str, str]) -> str:
    """Return the ratios of the rounds that both have."""
    ours, theirs = ({one["round"]: one for one in servers.get(name, [])} for name in (OURS, THEIRS))
    both = sorted(ours.keys() & theirs.keys())
    told = []
    for name, figure in compared.items():
        values = sorted(ours[one][figure] / theirs[one][figure] for one in both if theirs[one][figure])
        if values:
            spread = f" ({values[0]:.2f}-{values[-1]:.2f})" if len(values) > 1 else ""
            told.append(f"{name} {median(values):.2f}{spread}")
    return "; ".join(told)


def notes(found: Mapping[str, Any], *, is_busy: bool) -> list[str]:
    """Return notes on the machine, the load and failures."""
    machine, options, servers = found["machine"], found["options"], found["servers"]
    what = [f"{name} {facts.get('version') or facts.get('commit')}" for name, facts in servers.items()]
    load = f"{machine['load_before']:.1f} before, {machine['load_after']:.1f} after"
    told = [
        f"{machine['date']}, {' and '.join(what)}; {machine['cores']} cores ({machine['processor']}), Python"
        f" {machine['python']}; rounds: {options['rounds']}, of {options['seconds']:g} s a row; load of the"
        f" machine: {load}."
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


def written(page: Path, new: str) -> None:
    """Put a table into its place in a page."""
    text = page.read_text() if page.exists() else ""
    head, begins, rest = text.partition(BEGINS)
    _, ends, tail = rest.partition(ENDS)
    if not begins or not ends:
        raise BadPage(f"{page} has no place for the table. Put these two lines into it:\n{BEGINS}\n{ENDS}")
    page.write_text(f"{head}{BEGINS}\n{new}\n{ENDS}{tail}")
