"""Table rows for a node's view of its cluster (`GET /api/cluster`), for the command and the console."""

from __future__ import annotations

from typing import Any, Final

from services.times.display import both, span

NODES: Final = ("node", "copy to byte", "needs record", "behind", "lag", "supports", "http")
"""The columns of `node_rows`."""


def facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of a node about its cluster. Names of problems are in capitals."""
    leader = found["leader"]
    rows = [
        ("node", f"{found['node']}, {found['role']}"),
        ("leader", f"{leader['node']} at {leader['listen']}" if leader else "none is known"),
        ("epoch", str(found["epoch"])),
        ("log end", str(found["end_offset"])),
        ("behind", behind(found)),
        ("clock", skewed(found["clock_skew_ms"])),
        ("nodes", ", ".join(found["nodes"])),
        ("version", versions(found)),
    ]
    told = ("copying", "halted", "reopened", "unanswered")
    rows += [(name.upper(), found[name]) for name in told if found.get(name)]
    if found["foreign_lines"]:
        rows.append(("foreign", f"{found['foreign_lines']} lines in the shared log that no node wrote"))
    if count := found.get("repeated_records"):
        rows.append(("doubled", f"{count} records that the shared log has twice, the second stepped over"))
    if found["unfit"]:
        rows.append(("UNFIT", f"{found['unfit']}: it leads only while no other can"))
    if found["role"] == "leading" and (took_over := found["took_over"]) is not None:
        rows.append(("took over", f"{both(took_over['at_ms'])}: {took_over['why']}"))
    rows += [
        (f"follower {name}", f"{lag['lag_bytes']} bytes behind, {heard(lag)}")
        for name, lag in found["followers"].items()
    ]
    rows += progressed(found)
    rows += [("trouble", sentence) for sentence in found["engine_trouble"]]
    rows += [("DAMAGED", sentence) for sentence in found.get("broken_records", ())]
    for name, what in (("SESSIONS", "sessions_refused"), ("CLOCK", "engine_clock")):
        rows += [(name, found[what])] if found.get(what) else []
    rows += [("DAMAGED", sentence) for sentence in (found.get("scrub") or {}).get("faults", ())]
    return rows


def node_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each node and each copy."""
    copies = found["copies"]
    return [_row(name, copies.get(name), found) for name in sorted({*found["nodes"], *copies})]


def versions(found: dict[str, Any]) -> str:
    """Return text about the finalized version of records and the version that the node supports."""
    finalized, supported = found["finalized_version"], found["supported_version"]
    said = "not known yet" if finalized is None else f"{finalized} is finalized"
    return f"{said}, the node supports up to {supported}"


def behind(found: dict[str, Any]) -> str:
    """Return text about the lag of a node behind the shared log, or about the leader's unaccepted bytes."""
    if found["role"] == "leading":
        return f"{found['unaccepted_bytes']} bytes are not accepted yet"
    if found["lag_ms"] is None:
        return "nothing was read yet"
    return f"{found['lag_records']} records, {span(found['lag_ms'])}"


def progressed(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows about log data after the newest checkpoint, and about a leader's overdue work."""
    beyond_bytes, progress = found.get("beyond_checkpoint_bytes"), found.get("progress")
    rows = [] if beyond_bytes is None else [("beyond", f"{beyond_bytes} bytes after the newest checkpoint")]
    if progress is None:
        return rows
    unasked, stalled = progress["unasked_halves"], progress["stalled_message_groups"]
    waited = span(progress["waiting_message_group_age_ms"])
    age = f", the oldest for {span(progress['unasked_age_ms'])}" if unasked else ""
    return [
        *rows,
        ("halves", f"{unasked} are due and have no producer to be asked{age}"),
        (
            "groups",
            f"{stalled} message groups wait and were given nothing for 45 s, the longest for {waited}",
        ),
    ]


def heard(lag: dict[str, Any]) -> str:
    """Return text about the time since a follower was up to date with its leader."""
    if lag["heard_ms_ago"] is None:
        return f"not heard of for {span(lag['lag_ms'])}"
    return f"had all {span(lag['lag_ms'])} ago"


def skewed(skew_ms: int | None) -> str:
    """Return text about the difference between the clocks of a node and the engine."""
    if skew_ms is None:
        return "not compared yet"
    return f"{span(abs(skew_ms))} {'ahead of' if skew_ms >= 0 else 'behind'} the engine's, or less"


def _row(name: str, copy: dict[str, Any] | None, found: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of a node: its copy, and the number of records that the shared log retains for it."""
    if copy is None:
        return name, "none yet", "-", "-", "-", "-", "-"
    kept = f"{found['next_record'] - copy['next_record']} records"
    end = "is copying" if copy["end_offset"] is None else str(copy["end_offset"])
    supports = f"version {copy['supports']}"
    lag = found["followers"].get(name)
    lags = "-" if lag is None else f"{lag['lag_bytes']} bytes, {heard(lag)}"
    return name, end, str(copy["next_record"]), kept, lags, supports, copy["http"] or "-"
