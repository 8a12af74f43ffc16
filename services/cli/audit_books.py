"""`tidewheel audit seal|verify-seals`: closed books, and whether they are still what they were."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli import output
from services.cli.api import JsonOption
from services.cli.audit_options import FINDINGS, OutOption, RunOption, answering
from services.cli.durations import parse_ms
from services.cli.times import span, wall

if TYPE_CHECKING:
    from spark_jobs.options import AuditOptions
    from spark_jobs.seals.changes import ChangedWindow, Verification
    from spark_jobs.seals.files import Seal
    from spark_jobs.seals.seals import Sealing

WATERMARK = "10m"
ALLOWANCE = "An event may be written down so late: a window is sealed so long after its end."
CHANGES = ("window", "seal", "what has changed")


def seal(
    run_id: RunOption = "newest",
    out: OutOption = Path("audit-out"),
    watermark: Annotated[str, typer.Option(help=ALLOWANCE)] = WATERMARK,
    window: Annotated[str, typer.Option(help="Width of the windows; that of the seals before.")] = "5m",
    accept: Annotated[
        bool,
        typer.Option("--accept-changes", help="Take what has changed in sealed windows in as corrections."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Close the windows of event time that have passed: counts, digests, and what is still open.

    Exits with 1 if windows that were sealed before have changed since.

    Example: tidewheel audit seal --watermark 10m
    """
    with answering():
        from spark_jobs.runs import run_of
        from spark_jobs.seals import seals

        spans = parse_ms(window, "--window"), parse_ms(watermark, "--watermark")
        sealing = seals.seal(out, run_of(out, run_id), *spans, is_accepting=accept)
        output.print_json(as_facts(sealing)) if as_json else tell_sealing(sealing)
    if sealing.verification.changed and not sealing.accepted:
        raise typer.Exit(FINDINGS)


def seal_run(out: Path, options: AuditOptions, watermark_ms: int) -> bool:
    """Seal by a run that has just ended, and say so; whether windows that were sealed before have changed."""
    from spark_jobs.runs import run_of
    from spark_jobs.seals import seals

    sealing = seals.seal(out, run_of(out, options.run_id), options.window_ms, watermark_ms)
    output.say(sentence(sealing.seal) if sealing.seal else nothing(sealing.verification))
    return bool(sealing.verification.changed)


def verify_seals(
    run_id: RunOption = "newest", out: OutOption = Path("audit-out"), as_json: JsonOption = False
) -> None:
    """Compare every sealed window with what a run has seen; name each order that has changed.

    Exits with 0 if nothing has, with 1 if something has, with 2 if it could not be done.

    Example: tidewheel audit verify-seals
    """
    with answering():
        from spark_jobs.runs import run_of
        from spark_jobs.seals import seals

        run = run_of(out, run_id)
        found = seals.verify(out, run)
        output.print_json(verification_facts(found)) if as_json else tell_verification(found, run.run_id)
    if found.changed:
        raise typer.Exit(FINDINGS)


def tell_sealing(sealing: Sealing) -> None:
    """Print what was sealed and what is open."""
    print(sentence(sealing.seal) if sealing.seal else nothing(sealing.verification))
    tell_changes(sealing.verification.changed)
    if sealing.accepted:
        print("The changes are taken in as corrections.")
    elif sealing.verification.changed:
        output.say("when they are right: tidewheel audit seal --accept-changes")


def sentence(sealed: Seal) -> str:
    """Return a seal in words."""
    of = sealed.account
    since = f"from {wall(sealed.from_ms)} " if sealed.from_ms else ""
    return (
        f"Seal {sealed.number}: {len(sealed.windows):,} windows {since}up to {wall(sealed.to_ms)}, "
        f"{sealed.identities_count:,} identities.   digest {sealed.digest[:16]}\n"
        f"Orders: {of.carried:,} carried + {of.entered:,} entered = {of.closed:,} closed + "
        f"{of.vanished:,} vanished + {of.open:,} open."
    )


def nothing(found: Verification) -> str:
    """Return the sentence that no window has closed."""
    return f"No window has closed since {wall(found.to_ms)}." if found.to_ms else "No window has closed yet."


def tell_verification(found: Verification, run_id: str) -> None:
    """Print what a comparison has found."""
    if not found.seals:
        print("There are no seals yet. Make one by: tidewheel audit seal")
        return
    tell_changes(found.changed)
    covered = f", {found.not_covered:,} of them without what only the log knew" if found.not_covered else ""
    verdict = f"{len(found.changed):,} have changed" if found.changed else "none has changed"
    print(f"{found.windows:,} sealed windows up to {wall(found.to_ms)}{covered}: by run {run_id} {verdict}.")


def tell_changes(changed: list[ChangedWindow]) -> None:
    """Print each window that has changed."""
    if changed:
        rows = (
            (f"{wall(one.start_ms)} +{span(one.end_ms - one.start_ms)}", one.seal, one.why) for one in changed
        )
        output.print_table(CHANGES, rows, prose=CHANGES[-1:])


def as_facts(sealing: Sealing) -> dict[str, Any]:
    """Return a sealing as plain values."""
    sealed = sealing.seal.as_json() if sealing.seal else None
    return {"seal": sealed, "accepted": sealing.accepted} | verification_facts(sealing.verification)


def verification_facts(found: Verification) -> dict[str, Any]:
    """Return a comparison as plain values."""
    from dataclasses import asdict

    counts = {"seals": found.seals, "windows": found.windows, "not_covered": found.not_covered}
    changed = [asdict(one) | {"subject_id": one.subject_id, "why": one.why} for one in found.changed]
    return counts | {"to_ms": found.to_ms, "changed": changed}
