"""`tidewheel audit init`: propose a mapping for existing tables, with reasons, and run a first
audit with it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.audit.options import (
    FINDINGS,
    NOT_DONE,
    OutOption,
    StoreOption,
    answering,
    span_option,
    stepping,
)
from services.cli.audit.results import publish, show_summary
from services.cli.terminal import output
from services.cli.terminal.api import JsonOption
from services.cli.terminal.durations import parse_ms
from services.times.display import wall

if TYPE_CHECKING:
    from spark_jobs.inputs.stores import Inputs
    from spark_jobs.proposing.facts import LogFacts
    from spark_jobs.proposing.proposal import Proposal
    from spark_jobs.proposing.tables import Looked
    from spark_jobs.report.summary import AuditSummary

NAMES = ("name", "yours", "why")
STATUSES = ("status", "orders", "is", "why")
TABLES_SHOWN = 20


def init(
    db: Annotated[str, typer.Option("--db", help="The database with your orders, as an SQLAlchemy URL.")],
    store: StoreOption,
    mapping: Annotated[Path, typer.Option(help="The file to write the proposal to.")] = Path("audit.toml"),
    out: OutOption = Path("audit-out"),
    last: Annotated[str, span_option("Audit the orders of this last part of the log.")] = "1h",
    is_overwriting: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file of --mapping if it exists.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Inspect your tables and the log, propose a mapping, and audit the last hour with it.

    Only the file of --mapping, which `audit run` reads, and the folder of --out are written. Exit code 0: the
    books of that hour balance; 1: there are findings; 2: the audit could not be completed, or the mapping
    needs manual changes first.

    Example: tidewheel audit init --db sqlite:///shop.db --store ./store
    """
    with answering():
        last_ms = parse_ms(last, "--last")
        from spark_jobs.proposing import mapping_file

        mapping_file.refuse_existing(mapping, is_overwriting)
        with stepping() as step:
            log, looked, proposal = look_at(db, store, step)
        mapping_file.write(mapping, proposal, f"{looked.shown} and {store}")
        inputs = inputs_of(db, mapping, proposal)
        command = again(store, looked.shown, mapping, proposal)
        if not as_json:
            tell_proposal(proposal, looked, log, store, mapping)
        from_ms = first_audited_ms(log, last_ms)
        summary = first_audit(store, inputs, out, from_ms) if proposal.is_auditable else None
        if as_json:
            output.print_json(as_facts(proposal, summary))
        elif summary is not None:
            is_cut = from_ms > log.last_ms - last_ms
            since = f" (the log begins at {wall(log.first_ms)})" if is_cut else ""
            tell_audit(summary, last, since)
        output.say(f"{'Again' if summary else f'When {mapping} is right'}: {command}")
    if summary is None:
        raise typer.Exit(NOT_DONE)
    if not summary.balanced:
        raise typer.Exit(FINDINGS)


def look_at(db: str, store: Path, step: Any) -> tuple[LogFacts, Looked, Proposal]:
    """Return the facts of the log, the tables, and the proposed mapping."""
    from spark_jobs.proposing import log_facts, tables
    from spark_jobs.proposing.orders import keys_to_look_for
    from spark_jobs.proposing.proposal import Doubt
    from spark_jobs.proposing.propose import propose

    step(f"Reading the log of {store}")
    log = log_facts.read(store)
    step("Looking at the tables")
    looked = tables.look(db, "--db", keys_to_look_for(log.topics))
    proposal = propose(looked.tables, log)
    unreadable = tuple(Doubt(f"Table {one} could not be read.") for one in looked.unreadable)
    return log, looked, replace(proposal, doubts=(*proposal.doubts, *unreadable))


def inputs_of(db: str, mapping: Path, proposal: Proposal) -> Inputs:
    """Return the inputs of the first audit, read with the names in the mapping file."""
    from spark_jobs.inputs.mapping import read_mapping
    from spark_jobs.inputs.stores import Inputs

    carts, pushes = db if proposal.has_carts else None, db if proposal.has_pushes else None
    return Inputs(db, carts, pushes, read_mapping(mapping))


def first_audited_ms(log: LogFacts, last_ms: int) -> int:
    """Return the time from which orders are audited first. It is limited to the range of the log."""
    from spark_jobs.options import AuditOptions

    grace_ms = AuditOptions("").grace_ms
    covered_ms = log.first_ms - grace_ms if log.is_whole else log.first_ms + grace_ms + 1
    return max(log.last_ms - last_ms, covered_ms if log.first_ms else 0)


def first_audit(store: Path, inputs: Inputs, out: Path, from_ms: int) -> AuditSummary:
    """Audit the orders placed from a time on and return the summary."""
    from spark_jobs.main import audit
    from spark_jobs.options import AuditOptions, new_run_id

    with stepping() as step:
        summary = audit(store, inputs, out, AuditOptions(new_run_id(out), from_ms=from_ms), step)
    publish(out)
    return summary


def tell_proposal(proposal: Proposal, looked: Looked, log: LogFacts, store: Path, mapping: Path) -> None:
    """Print the inspected sources, each proposed name with its reason, the statuses, and the doubts."""
    topics = ", ".join(one.name for one in log.topics)
    part = f"{log.records:,} records" if log.is_whole else f"the newest {log.records:,} records"
    output.show(f"{looked.shown}: {listed([one.name for one in looked.tables])}")
    output.show(f"{store}: {part}, topics {topics}", "")
    named = [one for one in proposal.choices if one.value and one.section != "orders.statuses"]
    rows = [(f"{one.section}.{one.name}", shown(one.value), one.why) for one in named]
    output.print_table(NAMES, rows, prose=("why",))
    output.show("")
    statuses = [
        ("NULL" if one.value is None else one.value or "''", f"{one.rows:,}", one.meaning or "?", one.why)
        for one in proposal.statuses
    ]
    output.print_table(STATUSES, statuses, prose=("why",))
    for doubt in proposal.doubts:
        output.show("", f"{'! ' if doubt.is_blocking else ''}{doubt.said}")
    output.show("", f"Written: {mapping}")


def tell_audit(summary: AuditSummary, last: str, since: str = "") -> None:
    """Print the result of the first audit."""
    output.show("", f"The orders of the last {last}{since}:", "")
    show_summary(summary, as_json=False)
    if not summary.totals["orders"]:
        output.say(f"No order was placed in the last {last} of the log: give a longer span by --last.")


def again(store: Path, shown_db: str, mapping: Path, proposal: Proposal) -> str:
    """Return the command that repeats the audit with the mapping file."""
    words = ["tidewheel", "audit", "run", "--store", str(store), "--orders", shown_db]
    words += ["--carts", shown_db] if proposal.has_carts else []
    words += ["--pushes", shown_db] if proposal.has_pushes else []
    return " ".join(map(quote, [*words, "--mapping", str(mapping)]))


def as_facts(proposal: Proposal, summary: AuditSummary | None) -> dict[str, Any]:
    """Return the proposal and the audit as JSON values."""
    return {
        "mapping": proposal.document(),
        "why": [one._asdict() for one in proposal.choices],
        "doubts": [one._asdict() for one in proposal.doubts],
        "statuses": [one._asdict() for one in proposal.statuses],
        "audit": summary.as_json() if summary else None,
    }


def listed(names: list[str]) -> str:
    """Return a list of table names, truncated to `TABLES_SHOWN`."""
    more = f" and {len(names) - TABLES_SHOWN} more" if len(names) > TABLES_SHOWN else ""
    tables = "table" if len(names) == 1 else "tables"
    return f"{len(names)} {tables}: {', '.join(names[:TABLES_SHOWN])}{more}"


def shown(value: str | list[str]) -> str:
    """Return one or more names as a table cell."""
    return value if isinstance(value, str) else ", ".join(one or "''" for one in value)
