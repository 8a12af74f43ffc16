"""Listening sockets, and error messages about the process that occupies an address."""

from __future__ import annotations

import socket
from errno import EADDRINUSE
from pathlib import Path

from services.process.errors import PortTaken
from services.settings.config import Address
from tidewheel.errors import ConfigurationError

LISTENING = "0A"


def listen_on(address: Address, flag: str) -> socket.socket:
    """Return a listening socket; raise `PortTaken` or `ConfigurationError` with the option name.

    The socket is created with IPPROTO_TCP, because asyncio disables Nagle's algorithm only in this case.
    Otherwise an answer would wait 40 ms for the acknowledgement of the previous answer.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        raise refusal(address, flag, error) from error
    return listening


def refusal(address: Address, flag: str, error: OSError) -> ConfigurationError:
    """Return the error for an address that cannot be bound. It names the option that sets the address."""
    if error.errno != EADDRINUSE:
        return ConfigurationError(f"{flag} {address} cannot be listened on: {error.strerror}.")
    holder = holder_of(address.port)
    whose = f" by {holder}" if holder else ""
    return PortTaken(f"{address} is used{whose}. Stop that, or choose another address with {flag}.")


def holder_of(port: int) -> str:
    """Return text such as 'process 4121 (python)' for the listener of a port, or an empty string if it is
    unknown.
    """
    sockets = listening_sockets(port)
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(descriptor.readlink()) in sockets:
                process = descriptor.parents[1]
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
        except OSError:
            continue
    return ""


def listening_sockets(port: int) -> set[str]:
    """Return the names of the sockets that listen on a port, as in /proc/<pid>/fd (Linux only)."""
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        rows = table.read_text().splitlines()[1:] if table.exists() else []
        for columns in (row.split() for row in rows):
            if columns[3] == LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{columns[9]}]")
    return found
