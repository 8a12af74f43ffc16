"""Client settings files for `tidewheel` commands. Each node writes these files to its store.

The file `STORE/access/tidewheel.toml` has two main settings. The setting `http` lists the addresses of all
nodes, starting with this node. The setting `http_ca` is the name of the file `nodes.pem`. The file
`STORE/access/nodes.pem` contains the node certificates from the shared log.

Node certificates may be self-signed, and other machines do not trust self-signed certificates by default.
Nodes trust the certificates in the shared log (`peers`), whereas commands trust the certificates in
`nodes.pem`. The files are identical on all nodes except for the order of the addresses. The files contain no
secrets and can be copied to other machines. The token file should have the same path on all nodes, because
`tidewheel.toml` contains this path.

Limitation: other nodes do not list a follower that has not announced its copy yet.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog

from commitlog import layout
from commitlog.disk.disk import FOLDER_MODE
from services.process.private_files import EVERYBODY_READS, write_whole

REFRESH_SECONDS: Final = 2.0
SETTINGS, CERTIFICATES = "tidewheel.toml", "nodes.pem"

log = structlog.get_logger()

Nodes = Mapping[str, str]
"""A mapping from the HTTP URL of each node to its PEM certificate, or to "" for an http:// URL."""


def format_access_settings(nodes: Nodes, token: Path | None) -> str:
    """Return the contents of the settings file. The argument `token` is the path to the token file."""
    where = ",".join(url if url.startswith("https:") else urlsplit(url).netloc for url in nodes)
    trust = f'http_ca = "{CERTIFICATES}"\n' if any(nodes.values()) else ""
    secret = "" if token is None else f"http_token = {json.dumps(str(token.absolute()))}\n"
    said = "# Written by the node. To use it: export TIDEWHEEL_CONFIG=THIS-FILE"
    return f'{said}\nhttp = "{where}"\n{trust}{secret}'


def write_access_files(store: Path, nodes: Nodes, token: Path | None) -> None:
    """Write the certificate file and then the settings file. Raise OSError if the disk fails."""
    folder = store / layout.ACCESS
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    write_whole(folder / CERTIFICATES, "".join(sorted(set(nodes.values()))), EVERYBODY_READS)
    write_whole(folder / SETTINGS, format_access_settings(nodes, token), EVERYBODY_READS)


async def keep_files_current(
    store: Path,
    token: Path | None,
    known: Callable[[], Nodes],
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Rewrite both files whenever the set of known nodes changes, until the task is cancelled."""
    written: dict[str, str] = {}
    while True:
        nodes = dict(known())
        if list(nodes.items()) != list(written.items()):
            try:
                await asyncio.to_thread(write_access_files, store, nodes, token)
                written = nodes
            except OSError as error:  # the disk may be full; the old files are kept
                log.warning("the file for commands was not written", reason=str(error))
        await pause(REFRESH_SECONDS)
