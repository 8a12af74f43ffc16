"""The figures of growth as a table in Markdown: a line for each broker.

A figure is the median of its rounds, followed by the median of its ratios to the first broker of the row in
the same round, with their minimum and maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from peers_machine import load_text, machine_text
from peers_table import ms, spread

PLACE: Final = "growth"
"""The name of the table's markers in a page (`peers_page`)."""
TITLES: Final = {
    "send-1": "send 1 a call",
    "send-16": "send 16 a call",
    "receive": "receive and acknowledge 1",
    "delayed": "set and deliver a timer",
}
FACTS: Final = {
    "start_seconds": "start {:.1f} s",
    "start_anonymous_mb": "then {:,.0f} MB in no file",
    "killed_seconds": "start after kill -9 {:.1f} s",
    "p99_ms_max": "p99 of a send at most {}",
    "ids": "{:,.0f} ids",
    "bytes_each": "{:,.0f} bytes each",
    "idle_ms": "idle {:.1f} ms/s",
}


def table(found: Mapping[str, Any]) -> str:
    """Return the table, followed by notes on the machine and failures."""
    lines = [f"| broker | {' | '.join(TITLES.values())} | memory (in no file) | besides |"]
    lines.append("|---" * (len(TITLES) + 3) + "|")
    for row in found["figures"]:
        first = row["brokers"][0]
        for broker in row["brokers"]:
            cells = [
                cost_text(broker["costs"].get(kind, []), first["costs"].get(kind, [])) for kind in TITLES
            ]
            facts = broker["facts"]
            lines.append(
                f"| {broker['broker']} | {' | '.join(cells)} | {memory_text(facts)} | {facts_text(facts)} |"
            )
    return "\n".join([*lines, "", *notes(found)])


def cost_text(samples: Sequence[Mapping[str, float]], beside: Sequence[Mapping[str, float]]) -> str:
    """Format the processor time of a message, with its ratio to that of the row's first broker."""
    if not samples:
        return ""
    text = f"{median(one['server_us'] for one in samples):,.0f} us"
    if samples is beside:
        return text
    ratios = [one["server_us"] / other["server_us"] for one, other in zip(samples, beside, strict=True)]
    return f"{text}, {spread(ratios)}"


def memory_text(facts: Mapping[str, float]) -> str:
    """Format the memory of a warm broker: resident (anonymous)."""
    return f"{facts['resident_mb']:,.0f} MB ({facts['anonymous_mb']:,.0f})"


def facts_text(facts: Mapping[str, float]) -> str:
    """Format the figures that only some brokers have."""
    texts = {name: text for name, text in FACTS.items() if name in facts}
    return "; ".join(
        text.format(ms(facts[name]) if name == "p99_ms_max" else facts[name]) for name, text in texts.items()
    )


def notes(found: Mapping[str, Any]) -> list[str]:
    """Return notes on the machine and failures."""
    machine, options, commit = found["machine"], found["options"], found["commit"]
    told = [
        f"{machine['date']}, tidewheel {commit}; {machine_text(machine)}; rounds: {options['rounds']},"
        f" of {options['calls']:,} messages a sample; `--flush {options['flush']}`; {load_text(machine)}."
    ]
    failed = [f"- {one['row']}: {one['why']}" for one in found["failures"]]
    return [*told, *(["", "Failed, and left out:", *failed] if failed else [])]
