"""Apache RocketMQ 5.5.0 from a Maven repository: name server, and proxy and broker in one JVM (LOCAL mode).

Its settings are the defaults except for addresses, folders and `flushDiskType`, and `enablePopBufferMerge` in
separate rows; its heap is 3 GB, which leaves memory on a small machine. Topics and groups are created through
the broker's remoting port, since the proxy does not create them: a frame is its length, its header's length,
a header in JSON, a body.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from struct import Struct
from typing import Any, Final

from peers_servers import QUEUES, CannotRun, Server, free_port

VERSION: Final = "5.5.0"
POM: Final = Path(__file__).with_name("pom.xml")
HEAP: Final = "3g"
FETCH_SECONDS: Final = 900
FLUSH: Final = {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}
LENGTHS: Final = Struct(">II")
UPDATE_TOPIC, UPDATE_GROUP = 17, 200
READ_AND_WRITE: Final = "6"
CALL_SECONDS: Final = 10


def class_path(repository: Path | None) -> str:
    """Return the class path of RocketMQ's jars, fetched by Maven if missing; raise `CannotRun`."""
    for tool, package in (("mvn", "maven"), ("java", "openjdk-17-jre-headless")):
        if shutil.which(tool) is None:
            raise CannotRun(
                f"{tool} is missing, and RocketMQ needs it. Install Debian's {package}, or use --only ours."
            )
    with tempfile.TemporaryDirectory(prefix="tidewheel-peers-") as folder:
        listed = Path(folder, "classpath")
        command = ["mvn", "-B", "-q", "-f", str(POM), f"-Drocketmq.version={VERSION}"]
        if repository is not None:
            command.append(f"-Dmaven.repo.local={repository.resolve()}")
        command += ["dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        if done.returncode:
            raise CannotRun(
                f"Maven could not fetch RocketMQ {VERSION}. Check that it reaches Maven Central (a mirror or"
                " a proxy belongs in ~/.m2/settings.xml), or use --only ours. It said:\n"
                + (done.stdout + done.stderr)[-1_500:]
            )
        return listed.read_text().strip()


class RocketMq(Server):
    """Two JVMs: the name server, and the measured proxy with the broker."""

    name = "rocketmq"
    warm_turns = 3
    is_compiled_as_it_runs = True

    def __init__(self, folder: Path, flush: str, classes: str, *, merges_pops: bool = False) -> None:
        super().__init__(folder, flush)
        self._classes, self._merges_pops = classes, merges_pops
        self._remoting = free_port(-2, 1)

    async def start(self) -> None:
        """Start name server and proxy on a store in the folder; raise `CannotRun`."""
        began = time.monotonic()
        names, grpc = free_port(), free_port()
        self.address = f"127.0.0.1:{grpc}"
        (self.folder / "namesrv.conf").write_text(f"listenPort={names}\n")
        (self.folder / "broker.conf").write_text(
            "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerIP1=127.0.0.1\n"
            f"listenPort={self._remoting}\nnamesrvAddr=127.0.0.1:{names}\n"
            f"storePathRootDir={self.folder / 'store'}\nflushDiskType={FLUSH[self.flush]}\n"
            + "enablePopBufferMerge=true\n"
            * self._merges_pops
        )
        (self.folder / "proxy.json").write_text(
            json.dumps(
                {
                    "rocketMQClusterName": "DefaultCluster",
                    "grpcServerPort": grpc,
                    "remotingListenPort": free_port(),
                }
            )
        )
        self._java("namesrv", "128m", "namesrv.NamesrvStartup", "-c", "namesrv.conf")
        await self.wait_for(lambda: answers(names), "namesrv.log")
        where = ("-n", f"127.0.0.1:{names}", "-bc", "broker.conf", "-pc", "proxy.json")
        self._java("proxy", HEAP, "proxy.ProxyStartup", "-pm", "local", *where)
        await self.wait_for(lambda: answers(grpc), "proxy.log")
        self.start_seconds = time.monotonic() - began

    def _java(self, log: str, heap: str, program: str, *arguments: str) -> None:
        paths = [str(self.folder / one) if (self.folder / one).is_file() else one for one in arguments]
        command = [
            "java", f"-Xms{heap}", f"-Xmx{heap}", f"-Duser.home={self.folder}", "-cp", self._classes,
            f"org.apache.rocketmq.{program}", *paths,
        ]  # fmt: skip
        self.launch(command, f"{log}.log", {"ROCKETMQ_HOME": str(self.folder)})

    def facts(self) -> dict[str, Any]:
        """Return the versions of RocketMQ and Java, and the heap."""
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
        return {"version": VERSION, "java": said.splitlines()[1] if said else "unknown", "heap": HEAP}

    def make_topic(self, topic: str, message_type: str) -> None:
        """Create a topic of eight queues for messages of one type."""
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "perm": READ_AND_WRITE, "topicFilterType": "SINGLE_TAG",
            "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "topicSysFlag": "0",
            "order": "false", "attributes": f"+message.type={message_type}",
        }  # fmt: skip
        self._command(UPDATE_TOPIC, fields)

    def make_group(self, group: str) -> None:
        """Create a consumer group."""
        settings = {
            "groupName": group, "consumeEnable": True, "consumeFromMinEnable": True, "retryQueueNums": 1,
            "retryMaxTimes": 16, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
        }  # fmt: skip
        self._command(UPDATE_GROUP, {}, json.dumps(settings).encode())

    def _command(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        header = json.dumps(
            {"code": code, "language": "JAVA", "version": 0, "opaque": 1, "flag": 0, "extFields": fields}
        ).encode()
        with socket.create_connection(("127.0.0.1", self._remoting), timeout=CALL_SECONDS) as connection:
            connection.sendall(LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body)
            with connection.makefile("rb") as answers_file:
                _, header_bytes = LENGTHS.unpack(answers_file.read(LENGTHS.size))
                answer = json.loads(answers_file.read(header_bytes & 0xFFFFFF))
        if answer["code"]:
            raise CannotRun(f"RocketMQ refused command {code} with {answer['code']}: {answer.get('remark')}")


def answers(port: int) -> bool:
    """Return whether a server listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
