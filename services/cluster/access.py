"""The client settings files that each node maintains in its store for use by `tidewheel` commands.

In the file `STORE/access/tidewheel.toml`, the setting `http` lists the addresses of all nodes, beginning with
this node. The setting `http_ca` specifies the file `nodes.pem`. The file `STORE/access/nodes.pem` contains
the certificates of these nodes, as announced in the shared log.

Nodes create their own certificates. Because no certificate authority signs these certificates, other machines
do not trust them by default. Nodes trust the certificates in the shared log (`peers`), and commands trust the
certificates in `nodes.pem`. Apart from the order of the nodes, the files are identical on all nodes. The
files contain no secrets, so an administrator can copy them to other machines. The settings specify the token
file by its path, so the path should be the same on all nodes.

Weak spot: a follower is not listed in the files of other nodes until it has announced its copy.
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
from commitlog.disk import FOLDER_MODE
from services.process.private_files import EVERYBODY_READS, write_whole

LOOK_SECONDS: Final = 2.0
SETTINGS, CERTIFICATES = "tidewheel.toml", "nodes.pem"

log = structlog.get_logger()

Nodes = Mapping[str, str]
"""A mapping from the HTTP URL of each node to its PEM certificate, or to "" for an http:// URL."""


def settings_for(nodes: Nodes, token: Path | None) -> str:
    """Return the content of the settings file. `token` is the path of the token file that commands use."""
    where = ",".join(url if url.startswith("https:") else urlsplit(url).netloc for url in nodes)
    trust = f'http_ca = "{CERTIFICATES}"\n' if any(nodes.values()) else ""
    secret = "" if token is None else f"http_token = {json.dumps(str(token.absolute()))}\n"
    said = "# Written by the node. To use it: export TIDEWHEEL_CONFIG=THIS-FILE"
    return f'{said}\nhttp = "{where}"\n{trust}{secret}'


def write(store: Path, nodes: Nodes, token: Path | None) -> None:
    """Write the certificate file, and then the settings file. Raise OSError if the disk fails."""
    folder = store / layout.ACCESS
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    write_whole(folder / CERTIFICATES, "".join(sorted(set(nodes.values()))), EVERYBODY_READS)
    write_whole(folder / SETTINGS, settings_for(nodes, token), EVERYBODY_READS)


async def keep_files_current(
    store: Path,
    token: Path | None,
    known: Callable[[], Nodes],
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Until the task is cancelled, rewrite both files whenever the known nodes change."""
    written: dict[str, str] = {}
    while True:
        nodes = dict(known())
        if list(nodes.items()) != list(written.items()):
            try:
                await asyncio.to_thread(write, store, nodes, token)
                written = nodes
            except OSError as error:  # the disk may be full; the old files are kept
                log.warning("the file for commands was not written", reason=str(error))
        await pause(LOOK_SECONDS)
