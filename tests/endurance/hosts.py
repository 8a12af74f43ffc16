"""Hosts of a test's own on one machine: network namespaces on a bridge, whose links can be cut one way.

    hosts a, b, ...   a namespace each, with an address in a network that is in them and on the bridge only
    tester            the test's own process: the bridge's address, in the machine's own namespace

`cut(a, b)` drops what `a` sends to `b`, and nothing else: `a` gets a neighbour entry for `b` with a hardware
address that nobody has, so the bridge finds no port for it. It is dropped in silence, as by a switch that
fails: no reset, no "unreachable", and connections stand half-open on both sides. `b` still reaches `a`, which
answers into the void.

A network has a number, so several tests may run at once. Who uses a number holds a socket of its name, which
ends with the process; what a killed run has left under another one is taken down by the next run, processes
too. Needs root and `ip`; without them the test is skipped, with the reason.

Limitation: all hosts share one kernel, one clock and one disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

TESTER: Final = "tester"
PREFIX: Final = "tidewheel"
NETWORKS_MAX: Final = 16
NOBODY: Final = "02:00:00:00:00:00"
"""A hardware address that no host has."""
END_SECONDS: Final = 20.0
LINK: Final = "eth0"
NAMESPACES: Final = Path("/run/netns")


class Hosts:
    """Named hosts on one bridge; make them with `running_hosts`."""

    def __init__(self, number: int, names: Sequence[str]) -> None:
        assert TESTER not in names, f"{TESTER} is the test itself"
        self._number, self.names = number, tuple(names)
        self._cuts: set[tuple[str, str]] = set()

    @property
    def bridge(self) -> str:
        """The bridge, and how the names of the namespaces begin."""
        return _bridge(self._number)

    def address(self, name: str) -> str:
        """Return the address of a host, or of the test itself."""
        return f"10.213.{self._number}.{1 if name == TESTER else 2 + self.names.index(name)}"

    def command(self, name: str) -> list[str]:
        """Return what stands before a command that is to run on a host: it becomes the process itself."""
        return [] if name == TESTER else ["ip", "netns", "exec", self._namespace(name)]

    def cut(self, sender: str, receiver: str) -> None:
        """Drop what one host sends to another; the other way stays."""
        device = ("lladdr", NOBODY, "dev", self._device(sender), "nud", "permanent")
        ip(*self._in(sender), "neigh", "replace", self.address(receiver), *device)
        self._cuts.add((sender, receiver))

    def cut_both(self, one: str, other: str) -> None:
        """Drop what two hosts send to each other."""
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """Let everybody reach everybody again."""
        for sender, receiver in sorted(self._cuts):
            ip(*self._in(sender), "neigh", "del", self.address(receiver), "dev", self._device(sender))
        self._cuts.clear()

    def make(self) -> None:
        """Make the bridge, the namespaces and their links."""
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.address(TESTER)}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for number, name in enumerate(self.names):
            namespace, end = self._namespace(name), f"{self.bridge}v{number}"
            ip("netns", "add", namespace)
            ip("link", "add", end, "type", "veth", "peer", "name", LINK, "netns", namespace)
            ip("link", "set", end, "master", self.bridge, "up")
            ip("-n", namespace, "addr", "add", f"{self.address(name)}/24", "dev", LINK)
            for link in ("lo", LINK):
                ip("-n", namespace, "link", "set", link, "up")

    def _namespace(self, name: str) -> str:
        return f"{self.bridge}-{name}"

    def _in(self, name: str) -> tuple[str, ...]:
        return () if name == TESTER else ("-n", self._namespace(name))

    def _device(self, name: str) -> str:
        return self.bridge if name == TESTER else LINK


@contextmanager
def running_hosts(*names: str) -> Iterator[Hosts]:
    """Make hosts; take them down at the end, with all that runs there. Skips where they cannot be."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("hosts of a test's own need root and the command ip")
    held = list(_free_numbers())
    number, holding = held[0]
    for other, unused in held[1:]:
        _take_down(other)
        unused.close()
    try:
        _take_down(number)
        hosts = Hosts(number, names)
        hosts.make()
        yield hosts
    finally:
        _take_down(number)
        holding.close()


def ip(*words: str) -> str:
    """Run a command of iproute2; return what it says."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


def hears(hosts: Hosts, sender: str, receiver: str, seconds: float) -> bool:
    """Return whether a datagram from one host to another arrives."""
    script = (
        "import socket, sys\n"
        "heard = socket.socket(type=socket.SOCK_DGRAM)\n"
        "heard.bind((sys.argv[1], 9)); heard.settimeout(float(sys.argv[2]))\n"
        "print('ready', flush=True)\n"
        "try: heard.recv(9); print('heard')\n"
        "except TimeoutError: print('nothing')\n"
    )
    python = [*hosts.command(receiver), "python3", "-c", script, hosts.address(receiver), str(seconds)]
    with subprocess.Popen(python, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "ready\n"
        say = "import socket, sys\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'x', (sys.argv[1], 9))\n"
        subprocess.run([*hosts.command(sender), "python3", "-c", say, hosts.address(receiver)], check=True)
        return listening.stdout.readline() == "heard\n"


def _free_numbers() -> Iterator[tuple[int, socket.socket]]:
    """Yield the numbers that no process uses, each with a socket that holds it."""
    for number in range(NETWORKS_MAX):
        holding = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            holding.bind(f"\0{_bridge(number)}")
        except OSError:  # its address is in use
            holding.close()
            continue
        yield number, holding


def _bridge(number: int) -> str:
    return f"{PREFIX}{number}"


def _take_down(number: int) -> None:
    """End what runs on a network's hosts, and delete all that it is made of; there may be nothing of it."""
    bridge = _bridge(number)
    for namespace in [path.name for path in NAMESPACES.glob(f"{bridge}-*")]:
        _end_all_in(namespace)
        ip("netns", "del", namespace)
    ends = time.monotonic() + END_SECONDS
    while links := _links_of(bridge):  # a link goes with its namespace, but some time later
        for link in links:
            subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)
        assert time.monotonic() < ends, f"links {links} are not deleted"


def _links_of(bridge: str) -> list[str]:
    links = Path("/sys/class/net")
    return [path.name for path in (*links.glob(bridge), *links.glob(f"{bridge}v*"))]


def _end_all_in(namespace: str) -> None:
    """End all processes of a namespace, and wait until they are gone."""
    ends = time.monotonic() + END_SECONDS
    while left := ip("netns", "pids", namespace).split():
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        assert time.monotonic() < ends, f"processes {left} of {namespace} do not end"
        time.sleep(0.02)
