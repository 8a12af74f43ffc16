"""Hosts of a test's own are cut from each other one way, and nothing is left of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.endurance.hosts import TESTER, hears, running_hosts

HEARD_SECONDS, SILENT_SECONDS = 10.0, 0.5
ABANDONED = """
import os, subprocess
from tests.endurance.hosts import running_hosts
with running_hosts("a") as hosts:
    command = [*hosts.command("a"), "sleep", "1000"]
    left = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(hosts.bridge, left.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("sender", "receiver"), [("a", "b"), ("a", TESTER), (TESTER, "a")])
def test_a_cut_drops_what_one_host_sends_and_not_what_it_hears(sender: str, receiver: str) -> None:
    with running_hosts("a", "b") as hosts:
        assert hears(hosts, sender, receiver, HEARD_SECONDS)
        hosts.cut(sender, receiver)
        assert not hears(hosts, sender, receiver, SILENT_SECONDS)
        assert hears(hosts, receiver, sender, HEARD_SECONDS)
        hosts.heal()
        assert hears(hosts, sender, receiver, HEARD_SECONDS)


def test_hosts_that_are_cut_from_each_other_both_ways_hear_others() -> None:
    with running_hosts("a", "b", "c") as hosts:
        hosts.cut_both("a", "b")
        assert not hears(hosts, "a", "b", SILENT_SECONDS)
        assert not hears(hosts, "b", "a", SILENT_SECONDS)
        assert hears(hosts, "a", "c", HEARD_SECONDS)
        assert hears(hosts, TESTER, "b", HEARD_SECONDS)


def test_what_a_killed_run_has_left_is_taken_down_by_the_next_one() -> None:
    done = subprocess.run([sys.executable, "-c", ABANDONED], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    bridge, left = done.stdout.split()
    assert Path("/sys/class/net", bridge).exists()
    with running_hosts("a"):
        pass
    assert not Path("/sys/class/net", bridge).exists()
    assert not Path("/run/netns", f"{bridge}-a").exists()
    assert not commands_of(left)


def commands_of(process: str) -> bytes:
    """Return what a process runs; nothing if it has ended, whether or not somebody has waited for it."""
    with suppress(FileNotFoundError):
        return Path("/proc", process, "cmdline").read_bytes()
    return b""
