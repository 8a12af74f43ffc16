"""Ports: is one free, and if not, who has it."""

from __future__ import annotations

import socket
from pathlib import Path

from commitlog.errors import ConfigurationError, PortTaken
from services.config import Address

LISTENING = "0A"


def listen_on(address: Address, flag: str) -> socket.socket:
    """Return a socket bound to an address; raises `PortTaken` or `ConfigurationError` naming the flag."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address.host, address.port))
        bound.listen()
    except OSError as error:
        bound.close()
        raise refusal(address, flag, error) from error
    return bound


def refusal(address: Address, flag: str, error: OSError) -> ConfigurationError:
    """Return the error for an address that cannot be listened on."""
    if "in use" not in str(error.strerror):
        return ConfigurationError(f"{flag} {address} cannot be listened on: {error.strerror}.")
    holder = holder_of(address.port)
    whose = f" by {holder}" if holder else ""
    return PortTaken(f"{address} is used{whose}. Stop that, or choose another address with {flag}.")


def holder_of(port: int) -> str:
    """Return 'process 4121 (python)' for the listener of a port; empty when this system does not tell."""
    sockets = listening_inodes(port)
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target in sockets:
            process = descriptor.parents[1]
            return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


def listening_inodes(port: int) -> set[str]:
    """Return the names, as in /proc/<pid>/fd, of the sockets that listen on a port (Linux only)."""
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        rows = table.read_text().splitlines()[1:] if table.exists() else []
        for columns in (row.split() for row in rows):
            if columns[3] == LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{columns[9]}]")
    return found
