"""Output of `tidewheel store` for users."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from services.cli.terminal import output

if TYPE_CHECKING:
    from pathlib import Path

    from commitlog.log.recovery import Damage
    from services.rocketmq.export_store import ExportSummary
    from services.rocketmq.import_store import ImportSummary
    from services.store.findings import Finding
    from services.store.info import Info
    from services.store.repair.repair import Plan
    from services.store.verify.verify import Verdict

FINDINGS_SHOWN = 50


def print_info(found: Info) -> None:
    """Print the content of a store."""
    output.show(f"store      {found.path} (format {found.format})")
    output.show(
        f"log        {found.segment_count} segments of {size(found.segment_bytes)}, "
        f"offsets {found.first_offset} to {found.durable_offset} "
        f"{'durable' if found.accepted_offset is None else 'synced'}"
    )
    if found.accepted_offset is not None:
        output.show(f"accepted   {accepted(found.durable_offset, found.accepted_offset)}")
    if found.epoch:
        output.show(f"epoch      {found.epoch}")
    if found.imported_until:
        output.show(f"imported   up to offset {found.imported_until}")
    snapshots = (f"{one.offset} ({'sound' if one.is_sound else 'damaged'})" for one in found.snapshots)
    output.show(f"snapshots  {', '.join(snapshots) or 'none'}")
    due = f", the next due {moment(found.next_due_ms)}" if found.next_due_ms is not None else ""
    output.show(f"timers     {found.pending_timers} pending{due}")
    output.show(f"           {found.timer_names} names and {found.timer_ends} ends of timers known")
    output.show(f"halves     {found.open_halves} open, {found.expired_halves} expired", "")
    topics = (
        (one.topic.name, one.topic.message_type.lower(), one.topic.queue_count, one.message_count)
        for one in found.topics
    )
    output.print_table(("topic", "takes", "queues", "messages"), topics)
    if found.groups:
        output.show("")
        groups = (
            (one.group, one.topic, one.queue_id, one.committed_offset, one.end_offset, one.lag)
            for one in found.groups
        )
        output.print_table(("group", "topic", "queue", "committed", "end", "lag"), groups)
    output.show("")
    parts = ((one.name, one.file_count, size(one.file_bytes), size(one.disk_bytes)) for one in found.parts)
    output.print_table(("part", "files", "length", "on disk"), parts)


def accepted(synced_offset: int, accepted_offset: int) -> str:
    """Return text about the accepted offset of a node, and about the bytes that a crash might lose."""
    unsynced = accepted_offset - synced_offset
    if not unsynced:
        return f"up to {accepted_offset} by the cluster and taken in, all of it synced here"
    return (
        f"up to {accepted_offset} by the cluster and taken in; {unsynced} bytes of it are not synced here, "
        "and not looked at: after a crash the node reads them again from the shared log"
    )


def print_verdict(verdict: Verdict, store: Path) -> None:
    """Print the result of a verification."""
    output.show(
        f"log {verdict.first_offset} to {verdict.durable_offset}: {verdict.record_count} records, "
        f"{verdict.entry_count} queue entries, {verdict.snapshot_count} snapshots, "
        f"{verdict.kept_count} kept records"
    )
    if verdict.unwritten_count:
        output.show(
            f"{verdict.unwritten_count} of the entries are in no file yet; a start makes them from the log"
        )
    if verdict.accepted_offset is not None:
        output.show(f"accepted {accepted(verdict.durable_offset, verdict.accepted_offset)}")
    for finding in verdict.findings[:FINDINGS_SHOWN]:
        print_finding(finding)
    if len(verdict.findings) > FINDINGS_SHOWN:
        output.show(f"and {len(verdict.findings) - FINDINGS_SHOWN} more; --json prints all")
    if verdict.is_sound:
        output.show("nothing is damaged")
    elif verdict.accepted_offset is None:
        output.say(f"next, when no broker has the store: tidewheel store repair --dry-run --store {store}")
    else:
        output.say(
            f"next: stop the node, then: tidewheel cluster refetch --store {store}; at its start it gets "
            "another node's copy, and gives this one up when that has all that was accepted"
        )


def print_finding(finding: Finding) -> None:
    """Print one finding."""
    level = "DAMAGED" if finding.is_damage else "note   "
    where = f" at {finding.first_offset}" if finding.first_offset >= 0 else ""
    output.show(f"{level}  {finding.path or finding.part}{where}: {finding.what}")


def print_plan(planned: Plan, done: bool) -> None:
    """Print the changes of a repair, or the planned changes."""
    copied, moved, made, written = (
        ("copied", "moved", "made", "wrote")
        if done
        else ("would copy", "would move", "would make", "would write")
    )
    for damage in planned.quarantine:
        output.show(f"{copied} log {damage.first_offset} to {damage.end_offset} to quarantine")
    for path in planned.bad_snapshots:
        output.show(f"{moved} {path} to quarantine")
    for run in planned.mends:
        output.show(f"{written} {run.path} again, with all that it said")
    for run in planned.gives_up:
        output.show(f"{moved} {run.path} to quarantine")
    if planned.makes_facts:
        output.show(f"{made} names and ends of timers of what is left")
    if planned.makes_derived:
        output.show(f"{made} queues and key index anew")
    if planned.mends_timers:
        rebuilt = "rebuilt" if done else "would rebuild"
        output.show(f"{rebuilt} the timers of damaged files that the log or an older file still has")
    for lost in planned.lost:
        output.show(f"lost: {lost}")
    for finding in planned.hopeless:
        print_finding(finding)
    if planned.hopeless:
        output.show("only a backup can mend what is listed as DAMAGED")
        if any(one.part in ("names", "ends") for one in planned.hopeless):
            output.show("names and ends of timers that no backup has can be given up: --give-up-lost-names")
    elif planned.is_empty:
        output.show("there is nothing to repair")


def print_import(summary: ImportSummary, store: Path) -> None:
    """Print the result of an import."""
    output.show(
        f"{store} holds {summary.record_count} records up to log offset {summary.end_offset}, "
        f"{summary.topic_count} topics, {summary.group_count} groups"
    )
    output.show(
        f"waiting there: {summary.pending_timer_count} timers, {summary.open_half_count} open and "
        f"{summary.expired_half_count} expired halves, {summary.redelivered_count} messages to deliver again"
    )
    _print_rest(summary.damaged, summary.notes)
    output.say(f"next: tidewheel serve --store {store}")


def print_export(summary: ExportSummary, target: Path) -> None:
    """Print the result of an export, and the messages that the RocketMQ broker will deliver again."""
    output.show(
        f"{target} holds the log up to offset {summary.end_offset}, {summary.topic_count} topics, "
        f"{summary.group_count} groups"
    )
    output.show(
        f"waiting there: {summary.pending_timer_count} timers, {summary.open_half_count} open and "
        f"{summary.expired_half_count} expired halves; {summary.op_count} op records for those that ended"
    )
    if summary.repeats:
        output.show("", "messages that were acknowledged and come again:")
        columns = ("group", "topic", "queue", "from", "messages")
        rows = ((one.group, one.topic, one.queue_id, one.from_offset, one.count) for one in summary.repeats)
        output.print_table(columns, rows)
    _print_rest(summary.damaged, summary.notes)
    output.say(
        f"next: set the broker's mappedFileSizeCommitLog={summary.segment_bytes}, storePathRootDir={target}"
    )


def _print_rest(damaged: list[Damage], notes: list[str]) -> None:
    for damage in damaged:
        output.show(f"DAMAGED  log {damage.first_offset} to {damage.end_offset}: skipped")
    for note in notes:
        output.show(f"note     {note}")


def size(count: int) -> str:
    """Return a number of bytes with a unit."""
    units, power = ("B", "KiB", "MiB", "GiB", "TiB"), 0
    while count >= 1024 ** (power + 1) and power < len(units) - 1:
        power += 1
    return f"{count / 1024**power:.4g} {units[power]}"


def moment(time_ms: int) -> str:
    """Return a time as local time."""
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
