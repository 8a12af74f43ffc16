"""`tidewheel sample`: a program of an official client that runs as printed.

Each of `samples/` is a whole program for the address that a broker has by default; `--endpoint` puts another
in its place. `tests/clients/test_samples.py` runs them all as they are printed.
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


@app.command()
def sample(
    language: Annotated[Language, typer.Argument(help="The language of the program.")],
    endpoint: Annotated[
        str, typer.Option(help="HOST:PORT of the broker, as the program dials it.")
    ] = DEFAULT_ENDPOINT,
) -> None:
    """Print a program that sends a message and receives it; its first lines say how to run it.

    Example: tidewheel sample python --endpoint 127.0.0.1:8081 > sample.py
    """
    from commitlog.errors import ConfigurationError
    from services.config import parse_address

    try:
        parse_address(endpoint)
    except ValueError as error:
        raise ConfigurationError(f"{endpoint!r} is no endpoint: {error}.") from error
    print(program(language, endpoint), end="")


def program(language: Language, endpoint: str) -> str:
    """Return the program for a broker at `endpoint`."""
    source = files("services.cli").joinpath("samples", SAMPLES[language]).read_text("utf-8")
    return source.replace(DEFAULT_ENDPOINT, endpoint)
