"""`tidewheel sample`: print a sample program in a given language.

Each file of `samples/LANGUAGE/` is a complete program for one use, with its own topic and the default address
of a broker. `--endpoint` replaces the address, and `--tls` and `--no-tls` replace the line that enables TLS.
The user is read from the environment, so no secret is printed. `LACKING` lists the uses that a client does
not support, with an alternative. `tests/clients/test_samples.py` runs all programs as printed.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from typing import Annotated, Final, NamedTuple

import typer

app = typer.Typer(add_completion=False)


class Language(StrEnum):
    """A language with an official client, or Python with `tidewheel.Client`."""

    PYTHON = "python"
    PYTHON_TIDEWHEEL = "python-tidewheel"
    NODE = "node"
    JAVA = "java"
    GO = "go"
    RUST = "rust"


class Use(StrEnum):
    """The subject of a sample."""

    PLAIN = "plain"
    DELAY = "delay"
    CANCEL = "cancel"
    TRANSACTION = "transaction"
    FIFO = "fifo"
    PUSH = "push"


class Form(NamedTuple):
    """Programs of a language: folder, file suffix, and the lines with and without TLS."""

    folder: str
    suffix: str
    with_tls: str = ""
    without_tls: str = ""
    endpoint: str = "127.0.0.1:8081"


FORMS: Final = {
    Language.PYTHON: Form("python", ".py", "TLS = True\n", "TLS = False\n"),
    Language.PYTHON_TIDEWHEEL: Form(
        "python_tidewheel", ".py", '"https://', '"http://', endpoint="127.0.0.1:8088"
    ),
    Language.NODE: Form("node", ".js", "const TLS = true;\n", "const TLS = false;\n"),
    Language.JAVA: Form("java", ".java", "boolean TLS = true;\n", "boolean TLS = false;\n"),
    Language.GO: Form("go", ".go", "tls   = true\n", "tls   = false\n"),
    Language.RUST: Form("rust", ".rs"),
}
"""The Rust client does not support TLS."""

LACKING: Final = {
    (Language.RUST, Use.PUSH): (
        "The official Rust client has no push consumer. Receive and acknowledge in a loop: "
        "tidewheel sample rust --use plain."
    ),
}
"""Uses that a client does not support, with an alternative."""


@app.command()
def sample(
    language: Annotated[
        Language,
        typer.Argument(help="The language of the official client, or python-tidewheel for tidewheel.Client."),
    ],
    use: Annotated[Use, typer.Option(help="What the program shows.")] = Use.PLAIN,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of the broker that the program dials; default: 127.0.0.1:8081, for HTTP 8088."
        ),
    ] = None,
    tls: Annotated[
        bool | None,
        typer.Option("--tls/--no-tls", help="Use TLS or plaintext; default: the default of the client."),
    ] = None,
) -> None:
    """Print a program that sends and receives messages. Its first lines explain how to run it.

    For a broker with --auth, set TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY to the access key and the
    secret of a user. For a program with tidewheel.Client, set TIDEWHEEL_HTTP_TOKEN to the path of a token
    file.

    Example: tidewheel sample python --use delay --endpoint 127.0.0.1:8081 > sample.py
    """
    from services.settings.config import parse_address
    from tidewheel.errors import ConfigurationError

    if lacking := LACKING.get((language, use)):
        raise ConfigurationError(lacking)
    if endpoint is not None:
        try:
            parse_address(endpoint)
        except ValueError as error:
            raise ConfigurationError(f"{endpoint!r} is no endpoint: {error}.") from error
    if tls and not FORMS[language].with_tls:
        raise ConfigurationError(f"The {language.value} client speaks no TLS. Leave out --tls.")
    print(program(language, use, endpoint, tls), end="")


def program(language: Language, use: Use, endpoint: str | None = None, tls: bool | None = None) -> str:
    """Return the program for a broker at `endpoint` or at the default address.

    If `tls` is None, the client decides.
    """
    form = FORMS[language]
    source = files("services.cli").joinpath("samples", form.folder, use + form.suffix).read_text("utf-8")
    if tls is not None and form.with_tls:
        now, other = (form.with_tls, form.without_tls) if tls else (form.without_tls, form.with_tls)
        source = source.replace(other, now)
    return source if endpoint is None else source.replace(form.endpoint, endpoint)
