"""The source on a cluster: a master and two workers on loopback, with only the zip of `tidewheel.spark`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from commitlog.disk.real_disk import RealDisk
from commitlog.log.log import CommitLog
from commitlog.records.record import Record
from spark_jobs.java import java_home
from tidewheel.spark import write_archive

COUNT = 3000
WAIT_S = 300
JOB = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_jobs.source import TidewheelSource

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(TidewheelSource)
frame = spark.read.format("tidewheel").option("slice_bytes", 65536).option("bodies", "*").load(
    sys.argv[1]
)
row = frame.agg(
    F.count("*"), F.countDistinct("physical_offset"), F.sum(F.xxhash64("queue_offset", "body") % 1000003)
).first()
hosts = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
open(sys.argv[2], "w").write(f"{row[0]} {row[1]} {row[2]} {hosts}")
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "format").write_text("tidewheel 1\n")
    disk = RealDisk(folder)
    log = CommitLog(disk, 256 * 1024, 0, 0)
    for number in range(COUNT):
        log.append(Record(topic="t", body=b"%050d" % number, queue_offset=number))
    flush = log.take_flush()
    assert flush is not None
    flush.write()
    log.complete_flush(flush)
    disk.close()
    return folder


KILLED_JOB = """
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType
from spark_jobs.source import TidewheelSource

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(TidewheelSource)
killed = Path(sys.argv[2]).with_name("killed")

def executor_of(pid):
    \"\"\"The nearest process above a Python worker that is a JVM.\"\"\"
    while "java" not in os.readlink(f"/proc/{pid}/exe"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid

@F.udf(BooleanType())
def kill_once(number):
    if number == NUMBER:
        try:
            descriptor = os.open(killed, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return True
        os.close(descriptor)
        os.kill(executor_of(os.getpid()), signal.SIGKILL)
    return True

frame = spark.read.format("tidewheel").option("slice_bytes", 65536).option("bodies", "*").load(sys.argv[1])
row = frame.where(kill_once("queue_offset")).agg(
    F.count("*"), F.countDistinct("physical_offset"), F.sum(F.xxhash64("queue_offset", "body") % 1000003)
).first()
open(sys.argv[2], "w").write(f"{row[0]} {row[1]} {row[2]} {killed.exists()}")
""".replace("NUMBER", str(COUNT // 2))


class Cluster:
    """A master and workers, each a process of ours."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        self._home = Path(pyspark.__file__).parent
        self._port, self._ui_port = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "JAVA_HOME": str(java_home(folder)),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_WORKER_DIR": str(folder / "work"),
        }
        self._folder = folder
        self._start("master.Master", "--port", str(self._port), "--webui-port", str(self._ui_port))
        for _ in range(2):
            self._start("worker.Worker", "--cores", "1", "--memory", "600m", "--webui-port", "0", self.master)
        self._await_workers()

    def _start(self, name: str, *arguments: str) -> None:
        command = [
            str(self._home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name}",
            "--host",
            "127.0.0.1",
        ]
        output = self._stack.enter_context((self._folder / f"{name}.log").open("ab"))
        process = subprocess.Popen([*command, *arguments], env=self.environment, stdout=output, stderr=output)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def _await_workers(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._ui_port}/json/", timeout=5) as answer:
                    if answer.read().count(b'"ALIVE"') >= 3:
                        return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError("the workers did not register")

    def submit(self, *arguments: str) -> None:
        """Runs a job as a user would."""
        settings = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.executor.memory=512m")
        confs = [part for setting in settings for part in ("--conf", setting)]
        command = [str(self._home / "bin" / "spark-submit"), "--master", self.master, *confs, *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, cwd=self._folder, timeout=WAIT_S * 2
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def test_two_workers_read_what_one_does(cluster: Cluster, store: Path, tmp_path: Path) -> None:
    archive, job, answer = (tmp_path / name for name in ("tidewheel-spark.zip", "job.py", "answer"))
    assert write_archive(archive) > 20
    job.write_text(JOB)
    answers = []
    for cores in ("2", "1"):
        limits = ("--conf", f"spark.cores.max={cores}", "--py-files", str(archive))
        cluster.submit(*limits, str(job), str(store), str(answer))
        answers.append(answer.read_text().split())
    (*two, two_count), (*one, one_count) = answers
    assert two == one
    assert two[:2] == [str(COUNT)] * 2
    assert (two_count, one_count) == ("2", "1")


def test_a_killed_executor_does_not_change_the_result(cluster: Cluster, store: Path, tmp_path: Path) -> None:
    archive, answer = tmp_path / "tidewheel-spark.zip", tmp_path / "answer"
    write_archive(archive)
    answers = []
    for name, program in (("job.py", JOB), ("killed.py", KILLED_JOB)):
        job = tmp_path / name
        job.write_text(program)
        cluster.submit("--py-files", str(archive), str(job), str(store), str(answer))
        answers.append(answer.read_text().split())
    whole, killed = answers
    assert killed == [*whole[:3], "True"]
