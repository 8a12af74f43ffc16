"""`tidewheel debug bundle`: diagnostics of a broker for support, in one file.

If a part cannot be read, it is listed with the reason, and the other parts are included. `redaction.py`
removes secrets and application data.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import typer

from commitlog import layout
from services.cli.diagnosis.asking import WAIT_SECONDS
from services.cli.diagnosis.redaction import OUT, kept, scrubbed, scrubbed_all, without_filters
from services.cli.diagnosis.status import AUDITS, AuditsOption, lines, rows_of
from services.cli.settings.setting_options import ConfigOption
from services.cli.terminal import output
from services.cli.terminal.api import HttpOption, JsonOption, broker_at
from services.http.api import Api
from services.status.asking import cluster_of, metrics
from services.status.judgement import as_plain
from services.times.display import now_ms
from tidewheel.errors import ConfigurationError, TidewheelError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Collect diagnostics for support.\n\nExample: tidewheel debug bundle ./tidewheel.tar.gz",
)

REFUSALS: Final = 100
GROUP: Final = ("name", "topics", "policy", "lag", "in_flight", "waiting", "oldest_ms", "consumers")
REFUSAL: Final = ("at_ms", "reason", "host")
"""User and detail are omitted, because a secret may have been entered there by mistake."""
PASSWORDS: Final = ("PGPASSWORD",)


class Part(NamedTuple):
    """A file of the bundle, and a function that returns its content as text or a JSON value."""

    name: str
    read: Callable[[], Any]


class Place(NamedTuple):
    """Sources of a bundle: HTTP address, endpoint, store, audits, and settings file."""

    http: str | None
    endpoint: str
    store: Path | None
    audits: Path
    config: Path | None


@app.callback()
def debug() -> None:
    """Collect diagnostics for support."""


@app.command()
def bundle(
    file: Annotated[
        Path, typer.Argument(help="The file to create: FILE.tar.gz; an existing file is not replaced.")
    ],
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="HOST:PORT that clients dial; default: the setting listen.")
    ] = "",
    store: Annotated[
        Path | None, typer.Option("--store", help="Folder of the broker's store; default: the setting store.")
    ] = None,
    audits: AuditsOption = AUDITS,
    config: ConfigOption = None,
    http: HttpOption = None,
    as_json: JsonOption = False,
) -> None:
    """Collect diagnostics of a broker for support, without message bodies, properties and secrets.

    The file contains names of topics and groups, addresses and paths: review it before sharing. Run the
    command on the broker's machine, so that it finds the broker's settings. Parts that cannot be read are
    listed.

    Example: tidewheel debug bundle ./tidewheel.tar.gz
    """
    place = Place(http, endpoint, store, audits, config)
    secrets = known_secrets(place)
    with made(file) as archive:
        contents = gathered(archive, parts(place), secrets)
        add(archive, "contents.json", as_text(contents))
    if as_json:
        output.print_json({"file": str(file), **contents})
        return
    rows = [(name, f"{size:,} bytes") for name, size in contents["parts"].items()]
    rows += [(name, f"NOT READ: {why}") for name, why in contents["unread"].items()]
    output.print_table(("part", ""), rows)
    output.say(f"Wrote {file}, readable by its owner only, without bodies, properties, tokens or passwords.")


def parts(place: Place) -> Iterator[Part]:
    """Yield the parts of a bundle."""
    api, rows = broker_at(place.http, WAIT_SECONDS), cache(lambda: rows_of(place.http, place.audits))
    yield Part("version.json", versions)
    yield Part("config.json", lambda: settings_of(place.config))
    yield Part("status.txt", lambda: "\n".join(lines(*rows())) + "\n")
    yield Part("status.json", lambda: [as_plain(row) for row in rows()[0]])
    yield Part("ready.txt", lambda: "{} {}".format(*api.probe("/readyz")))
    yield Part("metrics.txt", lambda: without_filters(metrics(api)))
    yield Part("doctor.json", lambda: doctor_of(place))
    yield Part("topics.json", lambda: api.get("topics"))
    yield Part("groups.json", lambda: list(map(kept(GROUP), api.get("groups")["groups"])))
    yield Part("timers.json", lambda: api.get("timers", "summary"))
    yield Part("transactions.json", lambda: api.get("transactions", "summary"))
    yield Part("dead-letters.json", lambda: api.get("dead-letters"))
    yield Part("cluster.json", lambda: cluster_of(api))
    yield Part("refused.json", lambda: refusals(api))
    yield Part("checkpoints.json", lambda: checkpoints(store_of(place)))


def gathered(archive: tarfile.TarFile, found: Iterator[Part], secrets: Collection[str]) -> dict[str, Any]:
    """Add parts to an archive.

    Returns their sizes in bytes, and the reasons for parts that could not be read.
    """
    sizes, unread = {}, {}
    for part in found:
        try:
            content = part.read()
        except (TidewheelError, OSError, ValueError, KeyError, TypeError) as error:
            code = f"{error.code} " if isinstance(error, TidewheelError) else ""
            unread[part.name] = scrubbed(f"{code}{error or type(error).__name__}", secrets)
            continue
        is_text = isinstance(content, str)
        text = scrubbed(content, secrets) if is_text else as_text(scrubbed_all(content, secrets))
        add(archive, part.name, text)
        sizes[part.name] = len(text.encode())
    return {"parts": sizes, "unread": unread}


# Parts of the bundle.


def versions() -> dict[str, Any]:
    """Return the versions of Tidewheel, its libraries, Python and the platform."""
    from services.cli.diagnosis.version import SHOWN, installed

    libraries = {name: installed(name) for name in SHOWN}
    return {"python": sys.version, "platform": platform.platform(), "cpus": os.cpu_count(), **libraries}


def settings_of(config: Path | None) -> dict[str, Any]:
    """Return the settings that this command finds, with their origins."""
    from services.cli.settings.config import bare
    from services.settings.config import all_settings, look_up

    found = look_up(all_settings(), {}, config)
    values = {name: {"value": plain(bare(one.value)), "origin": one.origin} for name, one in found.items()}
    values["cluster"]["value"] = shown_url(str(found["cluster"].value))
    values["access_key"]["value"] = OUT if found["access_key"].value else ""
    return values


def plain(value: Any) -> Any:
    """Return a JSON value. Values of other types are converted to text."""
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def shown_url(url: str) -> str:
    """Return the URL of a shared log without its password."""
    from sharedlog.engines import without_password

    return without_password(url) if url else ""


def doctor_of(place: Place) -> list[dict[str, str]]:
    """Return the findings of `tidewheel doctor client` at the endpoint."""
    from services.cli.diagnosis.doctor import as_plain as step
    from services.cli.diagnosis.doctor import examined
    from services.settings.config import all_settings, look_up

    listen = place.endpoint or str(look_up(all_settings(), {}, place.config)["listen"].value)
    return [{"endpoint": listen}, *(step(one) for one in examined(listen, "", None))]


def refusals(api: Api) -> dict[str, Any]:
    """Return recent refusals: time, reason and host, with counts by reason."""
    found = api.get("refused", reason="", limit=REFUSALS)
    return {"counts": found["counts"], "refused": list(map(kept(REFUSAL), found["refused"]))}


def store_of(place: Place) -> Path:
    """Return the folder of the broker's store."""
    from services.settings.config import all_settings, look_up

    found: Path = place.store or look_up(all_settings(), {}, place.config)["store"].value
    return found


def checkpoints(store: Path) -> dict[str, Any]:
    """Return the checkpoints of a store: name, age and size. Raises OSError."""
    if not (store / layout.COMMITLOG).is_dir():
        raise FileNotFoundError(f"{store} is no store on this machine: name it with --store")
    found = []
    with suppress(FileNotFoundError):  # a new store has no checkpoints
        for path in sorted((store / layout.SNAPSHOTS).iterdir()):
            with suppress(FileNotFoundError):  # the checkpoint has been replaced in the meantime
                facts = path.stat()
                age_ms = max(0, now_ms() - facts.st_mtime_ns // 1_000_000)
                found.append({"name": path.name, "age_ms": age_ms, "bytes": facts.st_size})
    return {"store": str(store), "checkpoints": found}


def known_secrets(place: Place) -> set[str]:
    """Return the secrets that this process can read, so that they can be removed from the bundle."""
    from services.settings.config import all_settings, look_up

    found = {os.environ.get(name, "") for name in PASSWORDS}
    try:
        settings = look_up(all_settings(), {}, place.config)
    except TidewheelError:  # config.json reports the error
        return found - {""}
    for name in ("http_token", "secret_key_file"):
        with suppress(OSError, UnicodeDecodeError, TypeError):
            found.add(Path(settings[name].value).read_text().strip())
    with suppress(ValueError):
        password = urlsplit(str(settings["cluster"].value)).password or ""
        found |= {password, unquote(password)}
    return found - {""}


# The archive file.


@contextmanager
def made(file: Path) -> Iterator[tarfile.TarFile]:
    """Create an archive with mode 0600. It is removed after a failure.

    Raises `ConfigurationError` if the file exists or cannot be created.
    """
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigurationError(f"{file} is there already, and stays. Give another name.") from error
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be made ({error.strerror}). Give another place.") from error
    try:
        with os.fdopen(number, "wb") as opened, tarfile.open(fileobj=opened, mode="w:gz") as archive:
            yield archive
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def as_text(value: Any) -> str:
    """Return a part as JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def add(archive: tarfile.TarFile, name: str, text: str) -> None:
    """Add a part to an archive."""
    content = text.encode()
    facts = tarfile.TarInfo(f"tidewheel-bundle/{name}")
    facts.size, facts.mtime, facts.mode = len(content), time.time(), 0o600
    archive.addfile(facts, io.BytesIO(content))
