"""The broker under test, in a process of its own with the event loop that is asked for.

python front_server.py asyncio|uvloop STORE READY_FILE sync|async
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60
LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Served:
    """A broker process: its protocol port, its HTTP port, and gRPC's two behind the front."""

    process: int
    listen: str
    http: str
    behind_plaintext: str
    behind_tls: str

    @classmethod
    def when_ready(cls, process: int, ready: Path) -> Served:
        """Wait until it serves."""
        ends = time.monotonic() + START_SECONDS
        while not ready.exists():
            assert time.monotonic() < ends, "the broker did not start"
            time.sleep(0.05)
        facts = json.loads(ready.read_text())
        known = {int(facts[name].rpartition(":")[2]) for name in ("listen", "http")}
        behind = [port for port in listening_ports(process) if port not in known]
        assert len(behind) == 2, behind
        plaintext, tls = sorted(behind, key=speaks_tls)
        return cls(process, facts["listen"], facts["http"], f"127.0.0.1:{plaintext}", f"127.0.0.1:{tls}")


def listening_ports(process: int) -> list[int]:
    """The ports on which a process listens (Linux)."""
    sockets = {os.readlink(one) for one in Path(f"/proc/{process}/fd").iterdir()}
    tables = (Path(f"/proc/{process}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return [
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == LISTENING and f"socket:[{row[9]}]" in sockets
    ]


def speaks_tls(port: int) -> bool:
    """Whether a port answers a TLS hello."""
    import socket
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def processor_seconds(process: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(process: int) -> int:
    """What a process holds in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve(loop: str, store: str, ready: str, flush: str) -> None:
    """Serve until SIGTERM."""
    from services import run
    from services.config import Address, ServeSettings, load

    if loop == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    nowhere = Address("127.0.0.1", 0)
    settings = load(
        ServeSettings, store=Path(store), listen=nowhere, http=nowhere, ready_file=Path(ready), flush=flush
    )
    run.serve(settings, lambda _: None)


if __name__ == "__main__":
    serve(*sys.argv[1:])
