"""A Java that stays when an audit ends, for the next one: most of what an audit of a small store costs is
Java that starts, loads Spark's classes and compiles the plan, the same every time.

Each process of tests has one, from its first audit on. It is lent to one command at a time, by the two
variables with which `spark-submit` tells pyspark of its Java; the command makes a Spark context in it, and
stops that. A command that starts while another has it gets none, and starts its own; so do schedulers, whose
audits are cut off, and commands that are to look for Java elsewhere. Where a command died with it, there will
be another. Java cannot leave its folder: a command in another one gets it only if it names its store and its
results by absolute paths.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

AUDITS: Final = (["audit", "run"], ["audit", "init"], ["demo"])
HANDED: Final = ("--out", "--store")
WHERE_JAVA_IS: Final = ("PATH", "JAVA_HOME")
ROOT: Final = Path("/")
SECONDS: Final = 120
QUICK: Final = "-XX:-DontCompileHugeMethods -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_POPEN: Final = subprocess.Popen


class KeptJava:
    """A Java with Spark's classes that waits for who comes; `place` says where, in variables of pyspark's."""

    def __init__(self, place: Path) -> None:
        from spark_jobs.java import java_home

        self.folder = place
        self._files = Path(tempfile.mkdtemp(prefix="tidewheel-java-"))
        home, told = java_home(self._files), self._files / "told"
        (found,) = importlib.util.find_spec("pyspark").submodule_search_locations or []  # type: ignore[union-attr]
        options = ["--conf", "spark.driver.memory=2g", "--conf", f"spark.driver.extraJavaOptions={QUICK}"]
        packages = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "JAVA_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, packages)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told),
        }
        for name in ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS"):
            environment.pop(name, None)
        with (self._files / "log").open("ab") as log:
            self._process = _POPEN(
                [Path(found) / "bin" / "spark-submit", *options, "pyspark-shell"],
                env=environment, cwd=place, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        ends = time.monotonic() + SECONDS
        while not told.exists():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < ends, self.log
            time.sleep(0.02)
        (port,) = struct.unpack(">i", told.read_bytes()[:4])
        self.place = {
            "PYSPARK_GATEWAY_PORT": str(port),
            "PYSPARK_GATEWAY_SECRET": told.read_bytes()[8:].decode(),
        }
        self._borrower: subprocess.Popen[Any] | None = None

    @property
    def log(self) -> str:
        """What it has said."""
        return (self._files / "log").read_text()

    @property
    def is_lent(self) -> bool:
        """Whether a command that has it goes on."""
        return self._borrower is not None and self._borrower.returncode is None

    @property
    def is_sound(self) -> bool:
        """Whether it runs, and no command has died with it and left a context."""
        died = self._borrower is not None and (self._borrower.returncode or 0) < 0
        return self._process.poll() is None and not died

    def lend(self, borrower: subprocess.Popen[Any]) -> Mapping[str, str]:
        """Let a command have it; return where it is."""
        self._borrower = borrower
        return self.place

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()  # which is how Spark is told that whoever started it has ended
        self._process.wait()
        shutil.rmtree(self._files, ignore_errors=True)


_kept: list[KeptJava] = []
_taken: list[KeptJava] = []


def place_for(
    command: subprocess.Popen[Any], words: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Mapping[str, str]:
    """Return what the environment of a command is to say of Java: nothing if it starts none, or its own."""
    if not any(list(words[: len(one)]) == one for one in AUDITS):
        return {}
    if "PYSPARK_GATEWAY_PORT" in environment:  # a command itself, which has it for those that it starts
        return {}
    if any(environment.get(name) != os.environ.get(name) for name in WHERE_JAVA_IS):
        return {}
    if _kept and _kept[0].is_lent:
        return {}
    if _kept and not _kept[0].is_sound:
        end()
    if _kept and _kept[0].folder != folder and not is_of_any_folder(words):
        return {}
    if not _kept:
        _kept.append(KeptJava(ROOT if is_of_any_folder(words) else folder))
    return _kept[0].lend(command)


def taken() -> Mapping[str, str]:
    """Return where the Java of this process is, for a session of its own to the end; commands get another."""
    java = _kept.pop() if _kept and _kept[0].is_sound and not _kept[0].is_lent else KeptJava(ROOT)
    _taken.append(java)
    return java.place


def is_of_any_folder(words: Sequence[str]) -> bool:
    """Whether a command hands absolute paths to Java: of its results, and of its store if it has one."""
    named = dict(itertools.pairwise(words))
    return "--out" in named and all(Path(named.get(name, "/")).is_absolute() for name in HANDED)


def is_there() -> bool:
    """Whether this process has a Java that runs."""
    return any(one.is_sound for one in _kept)


def end() -> None:
    """End the Java of this process that is lent, if it has one."""
    while _kept:
        _kept.pop().end()


def end_all() -> None:
    """End each Java of this process."""
    end()
    while _taken:
        _taken.pop().end()
