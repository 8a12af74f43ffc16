"""`tidewheel doctor`: step-by-step diagnosis of the connection between a client and a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from services.cli.terminal import output
from services.cli.terminal.api import JsonOption

if TYPE_CHECKING:
    from services.doctor.finding import Finding

app = typer.Typer(add_completion=False)

DIFFERENCE = 1
Headers = tuple[tuple[str, str], ...]


@app.callback()
def doctor() -> None:
    """Diagnose the connection between a client and a broker."""


@app.command()
def client(
    endpoint: Annotated[str, typer.Argument(help="HOST:PORT that the client dials.")],
    topic: Annotated[
        str, typer.Option(help="The topic of the client; queried as by a client, so it may be created.")
    ] = "",
    ca: Annotated[
        Path | None,
        typer.Option(help="PEM file of the authority that the client trusts; default: the system's."),
    ] = None,
    access_key: Annotated[str | None, typer.Option(help="The access key of the client's user.")] = None,
    secret_key_file: Annotated[Path | None, typer.Option(help="File with the secret of this user.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat the steps of a client: name, port, protocol and TLS, and with --topic also endpoints, rights and
    type.

    Run the command on the machine of the client. Exit code 1: a problem was found.

    Example: tidewheel doctor client 127.0.0.1:8081 --topic orders
    """
    report(examined(endpoint, topic, ca, signed(access_key, secret_key_file)), as_json=as_json)


def report(found: Iterable[Finding], *, as_json: bool) -> NoReturn:
    """Print the result of each step, and exit with code 1 if a problem was found."""
    from services.doctor.finding import Verdict

    findings = []
    for finding in found:
        findings.append(finding)
        if not as_json:
            show(finding)
    if as_json:
        output.print_json([as_plain(finding) for finding in findings])
    raise typer.Exit(DIFFERENCE if any(one.verdict is Verdict.WRONG for one in findings) else 0)


def signed(access_key: str | None, secret_key_file: Path | None) -> Headers:
    """Return the authentication headers of a user; raise `ConfigurationError` if the credentials are
    incomplete.
    """
    from services.auth.signature import headers
    from services.settings.config import UserSettings, load, secret_in
    from tidewheel.errors import ConfigurationError

    user = load(UserSettings, access_key=access_key, secret_key_file=secret_key_file)
    if not user.access_key and user.secret_key_file is None:
        return ()
    if not user.access_key or user.secret_key_file is None:
        raise ConfigurationError("--access-key and --secret-key-file go together: give both or none.")
    secret = secret_in(user.secret_key_file, "secret_key_file").encode()
    return headers(user.access_key, secret, datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"))


def examined(endpoint: str, topic: str, ca: Path | None, who: Headers = ()) -> Iterator[Finding]:
    """Examine the connection to an endpoint and the access to a topic."""
    from services.doctor import route
    from services.doctor.connection import Connection
    from services.settings.config import parse_address
    from tidewheel.errors import ConfigurationError

    try:
        connection = Connection(parse_address(endpoint), ca)
    except ValueError as error:
        raise ConfigurationError(f"{endpoint!r} is no endpoint: {error}.") from error
    if ca is not None and not ca.is_file():
        raise ConfigurationError(f"--ca {ca} is no file. Give a PEM file with the authority's certificate.")
    yield from connection.examined()
    if connection.speaks:
        yield from route.examined(connection, route.Question(topic, who))


def show(finding: Finding) -> None:
    """Print a step, followed by the advice."""
    output.show(f"{finding.verdict.value:<5}  {finding.step:<11}  {finding.seen}")
    if finding.advice:
        output.show(f"{'':<20}--> {finding.advice}")


def as_plain(finding: Finding) -> dict[str, str]:
    """Return a step as JSON values."""
    return {
        "step": finding.step,
        "verdict": finding.verdict.value,
        "seen": finding.seen,
        "advice": finding.advice,
    }
