"""`tidewheel audit schedule`: a nightly audit with metrics, until it is stopped."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.audit.options import answering, refuse_seal_of_part
from services.cli.terminal import output

if TYPE_CHECKING:
    from services.settings.config import Address

WHERE = "The other options are those of `tidewheel audit run`, which it runs."


def schedule(
    context: typer.Context,
    at: Annotated[str, typer.Option(help="Time of the daily run: 02:00.")],
    zone: Annotated[str, typer.Option(help="The time zone of --at: Europe/London.")] = "UTC",
    keep: Annotated[
        int, typer.Option(help="Number of runs to keep; older runs are deleted. Seals are kept.", min=1)
    ] = 30,
    metrics: Annotated[
        str,
        typer.Option(
            help="HOST:PORT of metrics for Prometheus; port 0 selects a free port. Default: no metrics."
        ),
    ] = "",
    now: Annotated[bool, typer.Option("--now", help="Also run once immediately.")] = False,
) -> None:
    """Run the audit every night until Ctrl-C, SIGTERM or SIGHUP.

    The options of `audit run` are also accepted.

    Example: tidewheel audit schedule --at 02:00 --zone Europe/London --metrics 127.0.0.1:9108 --seal
    --store ./store --orders sqlite:///orders.db --carts redis://127.0.0.1:6379/0
    """
    arguments = tuple(context.args)
    out = out_of(arguments)
    with answering():
        from services.process import logs
        from services.server.nightly_audit import Nightly, serve

        logs.configure()
        nightly = Nightly(at, zone, arguments, out, keep, address(metrics), now)
        serve(nightly, lambda when, where: announce(nightly.out, when, where))


def out_of(arguments: tuple[str, ...]) -> Path:
    """Return the output folder of `audit run`. Invalid arguments are refused."""
    from services.cli.root import load

    group: Any = load("audit")
    run: Any = group.commands["run"]
    given = run.make_context("tidewheel audit run", list(arguments)).params
    refuse_seal_of_part(given["has_seal"], given["from_"], given["to"])
    found: Path = given["out"]
    return found


def address(text: str) -> Address | None:
    """Return the address for metrics. Raises `ConfigurationError`."""
    from services.settings.config import parse_address
    from tidewheel.errors import ConfigurationError

    try:
        return parse_address(text) if text else None
    except ValueError as error:
        raise ConfigurationError(f"--metrics is {text!r}: {error}.") from error


def announce(out: Path, when: datetime, where: Address | None) -> None:
    """Print the time of the next run."""
    at = when.strftime("%Y-%m-%d %H:%M %Z")
    metrics = f"   metrics http://{where}/metrics" if where else ""
    output.say(f"audits of {out}   next {at}{metrics}   Ctrl-C stops it")
