"""`tidewheel sample`: a program of an official client that runs as printed.

Each of `samples/` is a whole program for the address that a broker has by default; `--endpoint` puts another
in its place, `--tls` and `--no-tls` the line that says whether it uses TLS. Who it is it reads from its
environment: no secret is ever printed. `tests/clients/test_samples.py` runs them all as they are printed.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from typing import Annotated, Final

import typer

app = typer.Typer(add_completion=False)

DEFAULT_ENDPOINT: Final = "127.0.0.1:8081"


class Language(StrEnum):
    """A language that has an official client."""

    PYTHON = "python"
    NODE = "node"
    JAVA = "java"
    GO = "go"
    RUST = "rust"


SAMPLES: Final = {
    Language.PYTHON: "sample.py",
    Language.NODE: "sample.js",
    Language.JAVA: "Sample.java",
    Language.GO: "sample.go",
    Language.RUST: "sample.rs",
}

TLS_LINES: Final = {
    Language.PYTHON: "TLS = {}\n",
    Language.NODE: "const TLS = {};\n",
    Language.JAVA: "boolean TLS = {};\n",
    Language.GO: "tls   = {}\n",
}
"""How each says whether it uses TLS; Rust's client has none."""


@app.command()
def sample(
    language: Annotated[Language, typer.Argument(help="The language of the program.")],
    endpoint: Annotated[
        str, typer.Option(help="HOST:PORT of the broker, as the program dials it.")
    ] = DEFAULT_ENDPOINT,
    tls: Annotated[
        bool | None, typer.Option("--tls/--no-tls", help="Whether it uses TLS; else what its client does.")
    ] = None,
) -> None:
    """Print a program that sends a message and receives it; its first lines say how to run it.

    Where the broker asks who calls (--auth), give the program the access key and the secret of a user in
    TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY.

    Example: tidewheel sample python --endpoint 127.0.0.1:8081 > sample.py
    """
    from services.settings.config import parse_address
    from tidewheel.errors import ConfigurationError

    try:
        parse_address(endpoint)
    except ValueError as error:
        raise ConfigurationError(f"{endpoint!r} is no endpoint: {error}.") from error
    if tls and language not in TLS_LINES:
        raise ConfigurationError(f"The {language.value} client speaks no TLS. Leave out --tls.")
    print(program(language, endpoint, tls), end="")


def program(language: Language, endpoint: str, tls: bool | None = None) -> str:
    """Return the program for a broker at `endpoint`; `tls` None leaves TLS to what the client does."""
    source = files("services.cli").joinpath("samples", SAMPLES[language]).read_text("utf-8")
    if tls is not None and language in TLS_LINES:
        line, now, other = TLS_LINES[language], str(tls), str(not tls)
        if language is not Language.PYTHON:
            now, other = now.lower(), other.lower()
        source = source.replace(line.format(other), line.format(now))
    return source.replace(DEFAULT_ENDPOINT, endpoint)
