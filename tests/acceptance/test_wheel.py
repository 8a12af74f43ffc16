"""The two wheels, installed where users have folders named as the broker's packages, and where only their own
requirements are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from spark_jobs.java import java_home
from tidewheel.testing.process import BrokerProcess

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("tidewheel", "commitlog", "consumequeue", "timingwheel", "txn", "sharedlog", "services", "spark_jobs"),
)
CLIENT = "distributions/client"
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE")
THEIRS = ("services", "services/cli", "services/testing", "txn", "commitlog", "spark_jobs")
THEIR_TEST = """
import commitlog, services.cli, spark_jobs, txn
from rocketmq import ClientConfiguration, Credentials, Message, Producer
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from tidewheel import Barrier, Tidewheel, idempotence, once, outbox

THEIRS = "this is their own module"


def test_an_order_and_its_deadline_agree(tidewheel: Tidewheel, tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    barrier = Barrier(sessionmaker(engine))
    barrier.create_table()
    configuration = ClientConfiguration(tidewheel.endpoint, Credentials(), tidewheel.namespace)
    producer = Producer(configuration, ["deadlines"], barrier)
    producer.startup()
    message = Message()
    message.topic, message.keys, message.body = "deadlines", "order-7", b"unpaid"
    message.add_property("TIMER_DELAY_SEC", "1800")
    with barrier.transaction(producer, message) as session:
        session.execute(text("INSERT INTO orders VALUES (7)"))
    assert [one.keys for one in tidewheel.pending()] == [("order-7",)]
    tidewheel.advance("30m")
    assert tidewheel.pending() == []
    producer.shutdown()


def test_their_names_are_theirs():
    assert {one.OWNER for one in (commitlog, services, services.cli, spark_jobs, txn)} == {"the user"}
"""


@dataclass
class Environment:
    """A Python into which the wheel is installed, with some of the libraries of the tests' own."""

    python: Path

    @property
    def tidewheel(self) -> Path:
        return self.python.with_name("tidewheel")

    def run(
        self, *command: str | Path, cwd: Path, seconds: int = 120, **more: str
    ) -> subprocess.CompletedProcess[str]:
        given = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWHEEL_")}
        return subprocess.run(
            command,
            cwd=cwd,
            env=given | {"HOME": str(cwd), "NO_COLOR": "1", "COLUMNS": "200"} | more,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels of a copy of the sources, the client's first: a build leaves folders behind."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for folder in (*PACKAGES, CLIENT):
        left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        shutil.copytree(ROOT / folder, sources / folder, ignore=left_out)
    for file in FILES:
        shutil.copy(ROOT / file, sources)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(built), str(sources / CLIENT), str(sources))
    return [next(built.glob(f"{name}-*.whl")) for name in ("tidewheel_client", "tidewheel")]


def pip(*arguments: str) -> None:
    """Run the tests' own pip, without a network."""
    command = [sys.executable, "-m", "pip", *arguments, "--no-deps", "--no-index", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def environment(folder: Path, wheels: Sequence[Path], libraries: Path) -> Environment:
    """A new Python with wheels, which sees a folder of libraries."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(f"{libraries}\n")
    pip("--python", str(python), "install", *map(str, wheels))
    return Environment(python)


@pytest.fixture(scope="module")
def full(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheels beside every library of the tests; their .pth, which leads to the sources, is not read."""
    site = Path(str(distribution("pytest").locate_file(""))).resolve()
    return environment(tmp_path_factory.mktemp("full"), wheels, site)


@pytest.fixture(scope="module")
def small(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheels beside what `pip install tidewheel` brings and nothing else."""
    return beside_required(wheels, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def client_only(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install tidewheel-client` brings and nothing else."""
    return beside_required(wheels[:1], tmp_path_factory.mktemp("client"))


def beside_required(wheels: Sequence[Path], folder: Path) -> Environment:
    """A new Python with wheels and links to what they require."""
    libraries = folder / "libraries"
    libraries.mkdir()
    for needed in required(wheels):
        for top in {Path(file).parts[0] for file in needed.files or () if ".." not in Path(file).parts}:
            link = libraries / top
            if top != "__pycache__" and not link.exists():
                link.symlink_to(Path(str(needed.locate_file(top))).resolve())
    return environment(folder / "python", wheels, libraries)


def required(wheels: Sequence[Path]) -> list[Distribution]:
    """What pip would install for wheels without extras, but for these."""
    found: dict[str, Distribution] = {}
    waiting = [needed for one in map(metadata_of, wheels) for needed in unconditional(one, ())]
    while waiting:
        one = waiting.pop()
        is_new = one.name not in found
        if one.name != "tidewheel-client" and (is_new or one.extras):
            found[one.name] = distribution(one.name)
            waiting.extend(unconditional(found[one.name], tuple(one.extras), only_extras=not is_new))
    return list(found.values())


def metadata_of(wheel: Path) -> Distribution:
    """The wheel's metadata."""
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    # A path in a zip is all that it needs; typeshed asks for more than importlib.metadata does.
    return PathDistribution(zipfile.Path(archive, f"{folder}/"))  # type: ignore[arg-type]  # a zipfile.Path is a path to it


def unconditional(
    one: Distribution, extras: Sequence[str], only_extras: bool = False
) -> Iterator[Requirement]:
    """The requirements of a distribution that hold here, with some of its extras."""
    for line in one.requires or ():
        needed = Requirement(line)
        holds = needed.marker is None or needed.marker.evaluate({"extra": ""})
        by_extra = any(needed.marker and needed.marker.evaluate({"extra": extra}) for extra in extras)
        if (holds and not only_extras) or by_extra:
            yield needed


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, whose folders are named as ours."""
    for name in THEIRS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('OWNER = "the user"\n')
    (tmp_path / "services" / "config.py").write_text("")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_shop.py").write_text(THEIR_TEST)
    return tmp_path


def test_the_wheels_have_one_name_and_no_file_in_common(wheels: list[Path]) -> None:
    held: list[set[str]] = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            held.append({name for name in archive.namelist() if not name.endswith("/")})
            (folder,) = {name.split("/")[0] for name in held[-1]} - {"tidewheel"}
            assert archive.read(f"{folder}/top_level.txt") == b"tidewheel\n"
    client, broker = held
    assert client & broker == set()
    assert all(name.startswith("tidewheel/broker/") for name in broker if ".dist-info/" not in name)
    assert "tidewheel/py.typed" in client
    generated = "tidewheel/broker/services/rpc/generated/messages.binpb"
    assert {generated, "tidewheel/broker/services/cli/samples/go/plain.go"} <= broker


def test_the_broker_requires_the_client_of_its_version(wheels: list[Path]) -> None:
    client, broker = map(metadata_of, wheels)
    assert client.version == broker.version
    assert f"tidewheel-client=={client.version}" in (broker.requires or ())


def test_the_client_alone_sends_and_its_worker_consumes(client_only: Environment, tmp_path: Path) -> None:
    """No grpcio, no numpy, no server: an application's Python."""
    (tmp_path / "shop.py").write_text(
        "import os, signal\n"
        "from tidewheel import Worker\n"
        "worker = Worker()\n"
        '@worker.consume("orders", group="billing")\n'
        "def bill(message):\n"
        '    print("billed", message.text, flush=True)\n'
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    program = "from tidewheel import Client\nwith Client() as client: client.send('orders', '7')"
    broker = BrokerProcess(tmp_path)
    broker.start()
    here = {"TIDEWHEEL_HTTP": f"http://{broker.http}", "cwd": tmp_path}
    sent = client_only.run(client_only.python, "-c", program, **here)
    assert sent.returncode == 0, sent.stderr
    worked = client_only.run(client_only.tidewheel, "work", "shop:worker", **here)
    broker.stop()
    assert worked.stdout == "billed 7\n", worked.stderr
    assert worked.returncode == 0


@pytest.mark.parametrize("how", ["script", "module"])
def test_the_client_alone_says_what_its_command_needs(
    client_only: Environment, tmp_path: Path, how: str
) -> None:
    command = (client_only.tidewheel,) if how == "script" else (client_only.python, "-m", "tidewheel")
    ran = client_only.run(*command, "serve", "--store", ".", cwd=tmp_path)
    (sentence,) = ran.stderr.splitlines()
    assert sentence.startswith("TW-125 ")
    assert sentence.endswith("install them with: pip install tidewheel")
    assert ran.returncode == 3
    assert client_only.run(*command, "--version", cwd=tmp_path).stdout.startswith("tidewheel-client ")


@pytest.mark.parametrize("how", ["pytest", "python -m pytest and PYTHONPATH"])
def test_a_project_with_our_names_keeps_its_own_and_has_our_fixture(
    full: Environment, project: Path, how: str
) -> None:
    more = {} if how == "pytest" else {"PYTHONPATH": str(project)}
    entry = "import sys; sys.path.pop(0); import pytest; sys.exit(pytest.main())"
    command = ("-c", entry) if how == "pytest" else ("-m", "pytest")
    ran = full.run(full.python, *command, "-q", "-p", "no:cacheprovider", cwd=project, **more)
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize("more", [{}, {"PYTHONPATH": "."}])
def test_the_command_runs_in_such_a_project(full: Environment, project: Path, more: dict[str, str]) -> None:
    for command in ([full.tidewheel], [full.python, "-P", "-m", "tidewheel"]):
        ran = full.run(*command, "sample", "node", cwd=project, **more)
        assert ran.returncode == 0, ran.stderr


def test_a_users_process_loads_nothing_of_the_broker(full: Environment, project: Path) -> None:
    program = (
        "import sys, tidewheel.testing.plugin\n"
        "from tidewheel import Barrier, Client, Relay, Tidewheel, Worker, once\n"
        "from tidewheel.testing import process\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:])))"
    )
    ran = full.run(full.python, "-c", program, *PACKAGES[1:], "structlog", cwd=project)
    assert ran.stdout == "[]\n", ran.stdout + ran.stderr
    cheap = "import sys, tidewheel; print('sqlalchemy' in sys.modules, 'rocketmq' in sys.modules)"
    assert full.run(full.python, "-c", cheap, cwd=project).stdout == "False False\n"


def test_an_installation_without_extras_serves_and_answers(small: Environment, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from tidewheel.testing.process import BrokerProcess\n"
        "broker = BrokerProcess(pathlib.Path(sys.argv[1]))\n"
        "broker.start()\n"
        "print(broker.http, flush=True)\n"
        "sys.stdin.read()\n"
        "broker.stop()\n"
    )
    with subprocess.Popen(
        [small.python, "-c", program, tmp_path],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        http = broker.stdout.readline().strip()
        here = {"TIDEWHEEL_HTTP": http, "cwd": tmp_path}
        tidewheel = small.tidewheel
        sent = small.run(tidewheel, "send", "orders", "7", "--timer-key", "order:7", "--in", "30m", **here)
        assert sent.returncode == 0, sent.stderr
        listed = small.run(tidewheel, "timer", "ls", "--json", **here)
        assert '"order:7"' in listed.stdout, listed.stderr
        explained = small.run(tidewheel, "explain", "order:7", **here)
        assert "due" in explained.stdout, explained.stdout + explained.stderr
        broker.stdin.close()
        assert broker.wait(30) == 0


def test_an_installation_without_grpcio_examines_the_way_to_a_broker(
    small: Environment, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    ran = small.run(small.tidewheel, "doctor", "client", broker.listen, "--topic", "orders", cwd=tmp_path)
    broker.stop()
    assert "HTTP/2 is spoken" in ran.stdout, ran.stdout + ran.stderr
    assert "QueryRoute is answered: OK" in ran.stdout
    assert ran.returncode == 0


MISSING = {
    ("audit", "run", "--store", ".", "--orders", "sqlite:///o.db", "--carts", "redis://127.0.0.1:1"): "audit",
    ("audit", "plan"): "audit",
    ("audit", "seal"): "audit",
    ("shop", "orders"): "shop",
    ("shop", "carts"): "shop",
    ("shop", "pushes"): "shop",
    ("demo",): "shop",
    (
        "serve",
        "--store",
        "s",
        "--cluster",
        "postgresql://127.0.0.1:1/o",
        "--advertise",
        "127.0.0.1:1",
    ): "postgres",
    ("cluster", "create", "postgresql://tidewheel@db/orders"): "postgres",
    ("cluster", "create", "kafka://k1:9092/orders"): "kafka",
}


@pytest.mark.parametrize("arguments", MISSING, ids=" ".join)
def test_a_missing_extra_is_one_sentence(
    small: Environment, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ran = small.run(small.tidewheel, *arguments, cwd=tmp_path)
    (sentence,) = ran.stderr.splitlines()
    assert sentence.startswith("TW-125 An optional library is not installed. ")
    assert sentence.endswith(f"install it with: pip install 'tidewheel[{MISSING[arguments]}]'")
    assert ran.returncode == (2 if arguments[0] == "audit" else 3)


def test_every_commands_help_needs_no_extra(small: Environment, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tidewheel.command import broker_path\n"
        "sys.path.insert(0, str(broker_path()))\n"
        "from services.cli.commands import COMMANDS\n"
        "from services.cli.main import main\n"
        "for name in COMMANDS:\n"
        "    try: main([name, '--help'])\n"
        "    except SystemExit as ended: assert not ended.code, name\n"
    )
    ran = small.run(small.python, "-c", program, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", ["Barrier", "Relay", "once", "outbox"])
def test_a_users_import_without_the_extra_is_one_sentence_too(
    small: Environment, tmp_path: Path, name: str
) -> None:
    program = f"try:\n    from tidewheel import {name}\nexcept ImportError as error:\n    print(error)"
    ran = small.run(small.python, "-c", program, cwd=tmp_path)
    assert "pip install 'tidewheel-client[txn]'" in ran.stdout, ran.stderr


@pytest.mark.skipif("TIDEWHEEL_LONG" not in os.environ, reason="a Spark of its own: make test-cluster")
def test_a_sparks_own_program_reads_a_store_as_documented(full: Environment, tmp_path: Path) -> None:
    """Driver and workers find what the data source needs, though it is on nobody's path."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.post("/api/timers", {"topic": "order-paid", "body": "7", "timer_key": "order:7", "in": "1s"})
    broker.post("/api/clock/advance", {"by": "2s"})
    broker.stop()
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark.md").read_text(), re.DOTALL)
    assert len(shown) == 2
    program = "\n".join(shown).replace("/var/lib/tidewheel", str(tmp_path / "store"))
    looked = "\nassert 'commitlog' in sys.modules and not any(p.endswith('broker') for p in sys.path)\n"
    read = "assert spark.read.parquet('out').count() >= 2 and paid.count() == 1, paid.count()\n"
    java = {"JAVA_HOME": str(java_home(tmp_path)), "SPARK_LOCAL_IP": "127.0.0.1"}
    java["PYSPARK_PYTHON"] = str(full.python)  # as in an environment that is activated
    ran = full.run(
        full.python, "-c", f"import sys\n{program}{looked}{read}", cwd=tmp_path, seconds=600, **java
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-4000:]


def test_a_spark_program_with_a_name_of_ours_is_told_so(full: Environment, project: Path) -> None:
    program = (
        "from types import SimpleNamespace\n"
        "from tidewheel.spark import register\n"
        "try: register(SimpleNamespace(sparkContext=SimpleNamespace(addPyFile=print, environment={})))\n"
        "except Exception as error: print(error)\n"
    )
    ran = full.run(full.python, "-c", program, cwd=project)
    assert "has the name of a package of Tidewheel's" in ran.stdout, ran.stdout + ran.stderr
