"""A real Apache Kafka of a test session's own, of one node or three, where the machine has Maven and Java.

Each node is broker and controller (KRaft), a JVM over a folder of its own, on this machine's loopback or on a
host of its own (`tests.endurance.hosts`). Maven fetches the jars into its
own repository, once; where it cannot the test is skipped, and says so.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.endurance.hosts import Hosts

VERSION: Final = "4.1.1"
FETCH_SECONDS, START_SECONDS, STOP_SECONDS = 600, 60, 30
POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidewheel</groupId> <artifactId>kafka</artifactId> <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId> <artifactId>kafka_2.13</artifactId> <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId> <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
"""
LOGGING: Final = """appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
"""
SETTINGS: Final = """process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
offsets.topic.num.partitions=1
offsets.topic.replication.factor={replicas}
"""
JAVA: Final = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")


class KafkaNode:
    """One node, broker and controller; started again it keeps its ports and what it has written."""

    def __init__(
        self, folder: Path, number: int, ports: tuple[int, int], classes: str, hosts: Hosts | None = None
    ) -> None:
        self.folder, self.number, self.classes, self._hosts = folder, number, classes, hosts
        self.host = "127.0.0.1" if hosts is None else hosts.address(name_of_host(number))
        self.port, self.controller_port = ports
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    @property
    def address(self) -> str:
        """Where it serves clients."""
        return f"{self.host}:{self.port}"

    def format(self, settings: str, voters: str, replicas: int, cluster: str) -> None:
        """Write its settings, and make its empty folder one of a cluster."""
        (self.folder / "log4j2.properties").write_text(LOGGING)
        (self.folder / "settings").write_text(
            settings.format(
                number=self.number, voters=voters, host=self.host, port=self.port,
                controller_port=self.controller_port, folder=self.folder, replicas=replicas,
            )
        )  # fmt: skip
        self._format(cluster)

    def _format(self, cluster: str) -> None:
        given = ("format", "--cluster-id", cluster, "--config", str(self.folder / "settings"))
        subprocess.run(self._command("kafka.tools.StorageTool", *given), check=True, capture_output=True)

    def wipe(self) -> None:
        """Give it an empty disk in place of the one that it has, while it is stopped."""
        cluster = dict(one.split("=", 1) for one in self._properties.read_text().splitlines() if "=" in one)[
            "cluster.id"
        ]
        shutil.rmtree(self.data)
        self._format(cluster)

    def start(self) -> None:
        """Start it; `wait` returns when it serves."""
        with self._log.open("ab") as log:
            command = self._command("kafka.Kafka", str(self.folder / "settings"))
            place = [] if self._hosts is None else self._hosts.command(name_of_host(self.number))
            self.process = subprocess.Popen([*place, *command], stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until it takes connections of clients."""
        ends = time.monotonic() + START_SECONDS
        while True:
            assert self.process is not None, "a node that was not started"
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < ends, self.log()
            try:
                return socket.create_connection((self.host, self.port), timeout=1).close()
            except OSError:
                time.sleep(0.1)

    def pause(self) -> None:
        """Let it stand still, as SIGSTOP does; returns when it does."""
        assert self.process is not None, "a node that was not started"
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def go_on(self) -> None:
        """Let it go on after a pause."""
        assert self.process is not None, "a node that was not started"
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End it as an operator does."""
        assert self.process is not None, "a node that was not started"
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(STOP_SECONDS)
        self.process = None

    def log_of(self, topic: str) -> Path:
        """The folder of the log of a topic's partition 0."""
        return self.data / f"{topic}-0"

    @property
    def data(self) -> Path:
        """The folder of all its logs."""
        return self.folder / "data"

    @property
    def _properties(self) -> Path:
        return self.data / "meta.properties"

    def spoil(self, topic: str, before: bytes, after: bytes) -> None:
        """Overwrite bytes of a record where they lie, as a bad disk does: once, by as many."""
        (found,) = (one for one in self.log_of(topic).glob("*.log") if before in one.read_bytes())
        assert len(before) == len(after), "a disk changes bytes where they lie"
        found.write_bytes(found.read_bytes().replace(before, after, 1))

    def log(self) -> str:
        """What it has said last."""
        return self._log.read_text()[-5_000:]

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _command(self, program: str, *given: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [*JAVA, logging, "-cp", self.classes, program, *given]


class KafkaCluster:
    """Nodes that are one cluster."""

    def __init__(self, folder: Path, count: int, settings: str = "", hosts: Hosts | None = None) -> None:
        ports = free_ports(2 * count)
        classes = class_path()
        self.nodes = [
            KafkaNode(folder / f"kafka-{number}", number, (ports.pop(), ports.pop()), classes, hosts)
            for number in range(1, count + 1)
        ]
        self.bootstrap = ",".join(node.address for node in self.nodes)
        voters = ",".join(f"{node.number}@{node.host}:{node.controller_port}" for node in self.nodes)
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "x")
        for node in self.nodes:
            node.format(SETTINGS + settings, voters, count, cluster)

    def start(self) -> None:
        """Start every node, and wait until each serves."""
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait()

    def kill(self) -> None:
        """End every node that runs."""
        for node in self.nodes:
            node.kill()

    def url(self, topic: str) -> str:
        """Return the URL of a shared log."""
        return f"kafka://{self.bootstrap}/{topic}"


def name_of_host(number: int) -> str:
    """Return the name of the host that a node runs on, where it runs on one of its own."""
    return f"k{number}"


@contextmanager
def running_kafka(count: int = 1, settings: str = "", hosts: Hosts | None = None) -> Iterator[KafkaCluster]:
    """Run a cluster, with further settings if some are given. Skips the test where it cannot be had."""
    pytest.importorskip("confluent_kafka")
    folder = Path(tempfile.mkdtemp(prefix="tidewheel-kafka-"))
    try:
        cluster = KafkaCluster(folder, count, settings, hosts)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()
    finally:
        shutil.rmtree(folder)


@cache
def class_path() -> str:
    """Return Kafka's jars, which Maven fetches where they are not there yet."""
    for tool in ("mvn", "java"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: Apache Kafka needs Maven and Java")
    with tempfile.TemporaryDirectory(prefix="tidewheel-kafka-") as folder:
        pom, listed = Path(folder, "pom.xml"), Path(folder, "classpath")
        pom.write_text(POM)
        command = ["mvn", "-B", "-q", "-f", str(pom), "dependency:build-classpath"]
        command += ["-Dmdep.includeScope=runtime", f"-Dmdep.outputFile={listed}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        if done.returncode and "Could not" in done.stdout:
            pytest.skip(f"Maven cannot reach a repository that has Apache Kafka {VERSION}")
        assert done.returncode == 0, done.stdout[-3_000:]
        return listed.read_text().strip()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on.

    They are below the range from which Linux gives ports to every connection and to `bind` with port 0, so
    that no other process of the tests gets one before Kafka's start.
    """
    ports = list[int]()
    while len(ports) < count:
        port = SystemRandom().randrange(15_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports += [port] * (port not in ports)
    return ports
