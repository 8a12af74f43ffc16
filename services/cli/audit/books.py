"""`tidewheel audit seal|verify-seals`: seals of closed windows, and verification of sealed windows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.audit.options import FINDINGS, OutOption, RunOption, answering, width_ms
from services.cli.terminal import output
from services.cli.terminal.api import JsonOption
from services.cli.terminal.durations import parse_ms
from services.times.display import span, wall

if TYPE_CHECKING:
    from spark_jobs.options import AuditOptions
    from spark_jobs.seals.changes import ChangedWindow, Verification
    from spark_jobs.seals.files import Seal
    from spark_jobs.seals.seals import NextWindow, Sealing

WATERMARK = "10m"
ALLOWANCE = "Delay of sealing after the end of a window, for events that are recorded late."
CHANGES = ("window", "seal", "order", "what has changed")
LIMIT = 20


def seal(
    run_id: RunOption = "newest",
    out: OutOption = Path("audit-out"),
    watermark: Annotated[str, typer.Option(help=ALLOWANCE)] = WATERMARK,
    window: Annotated[str, typer.Option(help="Width of the windows; must be that of earlier seals.")] = "5m",
    accept: Annotated[
        bool,
        typer.Option("--accept-changes", help="Accept changes in sealed windows as corrections."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Seal the windows of event time that have passed, with counts, digests, and open orders.

    Exit code 1: windows that were sealed before have changed.

    Example: tidewheel audit seal --watermark 10m
    """
    with answering():
        from spark_jobs.runs import run_of
        from spark_jobs.seals import seals

        spans = width_ms(window), parse_ms(watermark, "--watermark")
        run = run_of(out, run_id)
        sealing = seals.seal(out, run, *spans, is_accepting=accept)
        output.print_json(as_facts(sealing)) if as_json else tell_sealing(sealing, run.names)
    if sealing.verification.changed and not sealing.accepted:
        raise typer.Exit(FINDINGS)


def seal_run(out: Path, options: AuditOptions, watermark_ms: int) -> bool:
    """Seal by a run that has just ended. Returns whether windows that were sealed before have changed."""
    from spark_jobs.runs import run_of
    from spark_jobs.seals import seals

    run = run_of(out, options.run_id)
    sealing = seals.seal(out, run, options.window_ms, watermark_ms)
    for line in told(sealing, run.names):
        output.say(line)
    return bool(sealing.verification.changed)


def verify_seals(
    run_id: RunOption = "newest",
    out: OutOption = Path("audit-out"),
    limit: Annotated[int, typer.Option(help="Largest number of changes to show.", min=1)] = LIMIT,
    as_json: JsonOption = False,
) -> None:
    """Compare every sealed window with a run, and print each order that has changed, with its sealed and its
    current facts.

    Exit code 0: nothing has changed; 1: something has changed; 2: the comparison could not be completed.

    Example: tidewheel audit verify-seals
    """
    with answering():
        from spark_jobs.runs import run_of
        from spark_jobs.seals import seals

        run = run_of(out, run_id)
        found = seals.verify(out, run)
        output.print_json(verification_facts(found)) if as_json else tell_verification(
            found, run.run_id, limit
        )
    if found.changed:
        raise typer.Exit(FINDINGS)


def tell_sealing(sealing: Sealing, names: dict[str, Any]) -> None:
    """Print the seal, the open orders, and the next window."""
    output.show(*told(sealing, names))
    tell_changes(sealing.verification.changed, LIMIT)
    if sealing.accepted:
        output.show("The changes are taken in as corrections.")
    elif sealing.verification.changed:
        output.say("when they are right: tidewheel audit seal --accept-changes")


def told(sealing: Sealing, names: dict[str, Any]) -> tuple[str, ...]:
    """Return the lines that describe a sealing and the next window."""
    done = sentences(sealing.seal) if sealing.seal else (nothing(sealing.verification),)
    return *done, waiting(sealing.next, names)


def sentences(sealed: Seal) -> tuple[str, str]:
    """Return the description of a seal as two lines."""
    of = sealed.account
    since = f"from {wall(sealed.from_ms)} " if sealed.from_ms else ""
    return (
        f"Seal {sealed.number}: {windows(len(sealed.windows))} {since}up to {wall(sealed.to_ms)}, "
        f"{sealed.identities_count:,} identities.   digest {sealed.digest[:16]}",
        f"Orders: {of.carried:,} carried + {of.entered:,} entered = {of.closed:,} closed + "
        f"{of.vanished:,} vanished + {of.open:,} open.",
    )


def windows(count: int) -> str:
    """Return a number of windows with its noun, such as "1 window" or "2 windows"."""
    return f"{count:,} window{'' if count == 1 else 's'}"


def nothing(found: Verification) -> str:
    """Return the message that no window has closed."""
    if found.to_ms:
        return f"Nothing is sealed: no window has closed since {wall(found.to_ms)}."
    return "Nothing is sealed: no window has closed yet."


def waiting(of: NextWindow, names: dict[str, Any]) -> str:
    """Return the message about the next window and the condition for its seal."""
    from spark_jobs.names import OrderNames

    known = OrderNames.of_json(names)
    if of.start_ms is None or of.end_ms is None or of.closes_ms is None:
        return (
            "The run knows of nothing that has happened to an order, and windows are closed by what happens."
        )
    newest = "none of them has one in this run"
    if of.newest is not None:
        fact = f"{known.of(of.newest.column)} of {known.order} {of.newest.order_id}"
        newest = f"the newest in this run is {wall(of.newest.at_ms)} ({fact})"
        if of.known_ms != of.newest.at_ms:
            newest += f", but its log goes only up to {wall(of.log_ms)}"
    return (
        f"The next window, {wall(of.start_ms)} to {wall(of.end_ms)}, can be sealed by a run in which a row "
        f"of the orders has a time of {wall(of.closes_ms)} or later ({span(of.watermark_ms)} past its end: "
        f"--watermark); {newest}."
    )


def tell_verification(found: Verification, run_id: str, limit: int) -> None:
    """Print the result of a verification."""
    if not found.seals:
        output.show("There are no seals yet. Make one by: tidewheel audit seal")
        return
    tell_changes(found.changed, limit)
    covered = f", {found.not_covered:,} of them without what only the log knew" if found.not_covered else ""
    count = len(found.changed)
    verdict = f"{count:,} {'has' if count == 1 else 'have'} changed" if count else "none has changed"
    output.show(
        f"{windows(found.windows)} sealed up to {wall(found.to_ms)}{covered}: by run {run_id} {verdict}."
    )


def tell_changes(changed: list[ChangedWindow], limit: int) -> None:
    """Print each changed order of the sealed windows, and a summary."""
    if not changed:
        return
    from spark_jobs.seals.telling import added_up

    orders = [(window, one) for window in changed for one in window.differences]
    rows = (
        (
            f"{wall(window.start_ms)} +{span(window.end_ms - window.start_ms)}",
            window.seal,
            one.order_id,
            f"{one.kind}: {one.words}",
        )
        for window, one in orders[:limit]
    )
    output.print_table(CHANGES, rows, prose=CHANGES[-1:])
    if len(orders) > limit:
        output.show(
            f"These are {limit:,} of {len(orders):,}. "
            f"All of them: tidewheel audit verify-seals --limit {len(orders)}"
        )
    output.show(added_up(changed))


def as_facts(sealing: Sealing) -> dict[str, Any]:
    """Return a sealing as JSON values."""
    from dataclasses import asdict

    sealed = sealing.seal.as_json() if sealing.seal else None
    newest = sealing.next.newest._asdict() if sealing.next.newest else None
    following = asdict(sealing.next) | {"newest": newest, "closes_ms": sealing.next.closes_ms}
    done = {"seal": sealed, "accepted": sealing.accepted, "next": following}
    return done | verification_facts(sealing.verification)


def verification_facts(found: Verification) -> dict[str, Any]:
    """Return a verification as JSON values."""
    from dataclasses import asdict

    counts = {"seals": found.seals, "windows": found.windows, "not_covered": found.not_covered}
    changed = [asdict(one) | {"subject_id": one.subject_id, "why": one.why} for one in found.changed]
    return counts | {"to_ms": found.to_ms, "changed": changed}
