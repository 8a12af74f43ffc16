"""Client settings for commands, which each node maintains in its store and which list all nodes.

In the file `STORE/access/tidewheel.toml`, the setting `http` lists the addresses of all nodes, beginning with
this node, and the setting `http_ca` refers to the file `nodes.pem`. The file `STORE/access/nodes.pem`
contains the certificates of these nodes, as announced in the shared log.

Nodes create their own certificates, which are not signed by a certificate authority and are not trusted by
other machines. Nodes trust the certificates in the shared log (`peers`), and commands trust those in
`nodes.pem`. The files on different nodes differ only in the order of the nodes. The files contain no secrets,
so an administrator can copy them to other machines. The settings refer to the token file by its path, which
should be the same on all nodes.

Weak spot: a follower that has not announced its copy yet is missing from the files of other nodes.
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
"""The HTTP URL of each node, mapped to its certificate in PEM format, or to "" for an http:// URL."""


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
    """Rewrite both files whenever the set of known nodes changes, until the task is cancelled."""
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
