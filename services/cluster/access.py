"""How commands reach the nodes of a cluster, whichever answers: a file that each node keeps in its store.

    STORE/access/tidewheel.toml    `http`: the addresses of all nodes, this one first; `http_ca`: the other
    STORE/access/nodes.pem         the certificates that they show there, as the shared log tells them

A node makes its certificate for itself, so that no authority vouches for it, and another machine has not got
it. What nodes trust of each other stands in the shared log (`peers`); here that is given to commands. Both
files are the same on all nodes but for the order, hold no secret (of the token only where it lies, which
should be the same on all), and may be copied to another machine.

Weak spot: a node that has told nothing of itself yet is missing at the others, unless it leads.
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
"""The URL of each node's HTTP interface, and the certificate that it shows there, as PEM; empty of http://."""


def settings_for(nodes: Nodes, token: Path | None) -> str:
    """Return the file of settings for commands; `token` is the file of the token that they send."""
    where = ",".join(url if url.startswith("https:") else urlsplit(url).netloc for url in nodes)
    trust = f'http_ca = "{CERTIFICATES}"\n' if any(nodes.values()) else ""
    secret = "" if token is None else f"http_token = {json.dumps(str(token.absolute()))}\n"
    said = "# Written by the node. To use it: export TIDEWHEEL_CONFIG=THIS-FILE"
    return f'{said}\nhttp = "{where}"\n{trust}{secret}'


def write(store: Path, nodes: Nodes, token: Path | None) -> None:
    """Write both files, the certificates first; raise OSError."""
    folder = store / layout.ACCESS
    folder.mkdir(FOLDER_MODE, exist_ok=True)
    write_whole(folder / CERTIFICATES, "".join(sorted(set(nodes.values()))), EVERYBODY_READS)
    write_whole(folder / SETTINGS, settings_for(nodes, token), EVERYBODY_READS)


async def keep(
    store: Path,
    token: Path | None,
    known: Callable[[], Nodes],
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Write both files again whenever their content changes, until cancelled."""
    written: dict[str, str] = {}
    while True:
        nodes = dict(known())
        if list(nodes.items()) != list(written.items()):
            try:
                await asyncio.to_thread(write, store, nodes, token)
                written = nodes
            except OSError as error:  # a disk without room: commands know what they knew
                log.warning("the file for commands was not written", reason=str(error))
        await pause(LOOK_SECONDS)
