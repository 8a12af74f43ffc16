"""What threads free goes back to the system; in a process of its own, since the setting holds for good."""

from __future__ import annotations

import subprocess
import sys

import pytest

MEASURED = """
import sys, threading
from pathlib import Path
import numpy as np
from services.process.memory import keep_little

def held_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

def crowd():
    np.ones(31 << 20, np.uint8)
    arrays = [np.ones(20 << 20, np.uint8) for _ in range(5)]
    kept.append(np.ones(4_096, np.uint8))

if sys.argv[1] == "given back":
    keep_little()
kept, before = [], held_mib()
for _ in range(3):
    thread = threading.Thread(target=crowd)
    thread.start()
    thread.join()
print(held_mib() - before)
"""
GIVEN_BACK_MIB_MAX = 8


def held_mib(how: str) -> float:
    """MiB held more than before by a process whose threads have freed all but some bytes."""
    command = [sys.executable, "-c", MEASURED, how]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the heap of other systems is left as it is")
def test_what_threads_have_freed_is_given_back() -> None:
    assert held_mib("given back") < GIVEN_BACK_MIB_MAX


LOOKED_AT = """
import gc
from services.process.memory import WholeLooks, keep_little

keep_little()
held = [[{}, []] for _ in range(int(sys.argv[1]))]
WholeLooks(lambda seconds, call: None)
sizes = []

def note(phase, look):
    if phase == "start" and look["generation"] == 2:
        sizes.append(sum(len(gc.get_objects(number)) for number in range(3)))

gc.callbacks.append(note)
held += [[{}, []] for _ in range(200_000)]
print(max(sizes))
"""
LOOKED_AT_MAX = 50_000


@pytest.mark.parametrize("held_count", [0, 300_000])
def test_no_look_for_cycles_comes_to_all_that_is_held(held_count: int) -> None:
    command = [sys.executable, "-c", "import sys" + LOOKED_AT, str(held_count)]
    assert int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout) < LOOKED_AT_MAX


FREED = """
import gc, sys, weakref
from services.process import memory

class Node:
    def __init__(self):
        self.itself, self.more = self, []

spent = [0.0]
memory.keep_little()
held = [[{}, []] for _ in range(100_000)]
looks = memory.WholeLooks(lambda seconds, call: None, lambda: spent[0])
grown = [Node() for _ in range(int(sys.argv[1]))]
gc.collect()
seen = weakref.ref(grown[0])
del grown
gc.collect()
told = []
for number in range(3):
    told.append(seen() is None)
    spent[0] += float(sys.argv[2]) * memory.WHOLE_SECONDS
    looks.consider()
print(*map(int, told))
"""


@pytest.mark.parametrize(
    ("node_count", "busy_part", "freed"),
    [(100_000, 0.0, "0 1 1"), (200_000, 0.9, "0 0 1"), (10_000, 0.0, "0 0 0"), (60_000, 0.9, "0 0 0")],
    ids=["calm", "busy and doubled", "few", "busy and not doubled"],
)
def test_a_cycle_that_became_garbage_once_it_was_frozen_is_freed(
    node_count: int, busy_part: float, freed: str
) -> None:
    command = [sys.executable, "-c", FREED, str(node_count), str(busy_part)]
    assert (
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split() == freed.split()
    )


ASKED = """
import gc, weakref
from services.process import memory

class Node:
    def __init__(self):
        self.me = self

memory.keep_little()
called = []
looks = memory.WholeLooks(lambda seconds, call: called.append(call))
core = Node()
gc.collect()
seen = weakref.ref(core)
del core
gc.collect()
told = [seen() is None]
for _ in range(2):
    looks.look_soon()
planned, asked = called
asked()
told.append(seen() is None)
looks.look_soon()
print(*map(int, told), len(called))
"""


def test_who_lets_go_of_much_in_a_cycle_has_it_freed_soon_by_one_look_for_all() -> None:
    command = [sys.executable, "-c", ASKED]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split() == [*"013"]
