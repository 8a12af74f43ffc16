"""Apache RocketMQ's own store code, as a Java program that writes and reads stores; built once per run."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.rocketmq.config_files import parse_json

JAVA = Path(__file__).parent / "java"
BUILD_SECONDS = 900
RUN_SECONDS = 180


@dataclass(frozen=True)
class Genuine:
    """The compiled program; each call is a JVM of its own."""

    classpath: str

    def run(self, program: str, *arguments: object) -> list[dict[str, Any]]:
        """What the program prints, one object a line."""
        command = ["java", "-cp", self.classpath, f"tidewheel.rocketmq.{program}", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return [parse_json(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def write(self, root: Path, *how: str) -> list[dict[str, Any]]:
        """Writes a store; what each of its messages is."""
        return self.run("WriteStore", root, *how)

    def read(self, root: Path, *timers: object) -> list[dict[str, Any]]:
        """Opens a store and reads every queue of it."""
        return self.run("ReadStore", root, *timers)


@pytest.fixture(scope="session")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Genuine:
    """The program, or a skip that says what is missing."""
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: RocketMQ's store code needs Maven and a JDK")
    build = tmp_path_factory.mktemp("java")
    classpath = build / "classpath"
    command = [
        "mvn", "-B", "-q", "-f", str(JAVA / "pom.xml"), f"-DbuildDirectory={build}",
        "compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    if done.returncode and "Could not resolve" in done.stdout:
        pytest.skip("Maven cannot reach a repository that has rocketmq-store")
    assert done.returncode == 0, done.stdout[-3000:]
    return Genuine(os.pathsep.join([str(build / "classes"), classpath.read_text()]))


@pytest.fixture(scope="session")
def written(genuine: Genuine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A store that RocketMQ wrote and closed, and what it put there; tests copy what they change."""
    root = tmp_path_factory.mktemp("genuine") / "store"
    return root, genuine.write(root)
