"""Both ends of each bound of the two distributions, on each Python that is here: what pip may install works.

    make test-bounds

A case is an environment of its own with our wheels, and with the oldest, or the newest, versions that the
bounds allow and that have a wheel for its Python. uv makes it: pip knows no way to the oldest ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

import grpc
import pytest

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.wire.request_shape import COUNTED_ABOVE_BYTES
from tidewheel.testing.process import BrokerProcess

ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = "distributions/client"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
ENDS: Final = ("lowest-direct", "highest")
OURS: Final = "tidewheel"
SECONDS: Final = 300


class Case(NamedTuple):
    """What is installed: the ends of which bounds, for which Python."""

    python: str
    end: str


CASES: Final = [Case(python, end) for python in PYTHONS for end in ENDS]


def python_of(minor: str) -> Path | None:
    """The interpreter of a version: the tests' own, one on the path, or one of pyenv's."""
    kept = (Path.home() / ".pyenv" / "versions").glob(f"{minor}.*/bin/python")
    for one in (sys.executable, shutil.which(f"python{minor}"), *sorted(kept)):
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        if one and subprocess.run([one, "-c", ask], capture_output=True, text=True).stdout.strip() == minor:
            return Path(one)
    return None


def requirements_of(folder: str, *extras: str) -> list[str]:
    """The requirements of a distribution and of some of its extras, but for those on ourselves."""
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    named = project["dependencies"] + [
        line for extra in extras for line in project["optional-dependencies"][extra]
    ]
    return [line for line in named if not line.startswith(OURS)]


def run(*command: str | Path, cwd: Path = ROOT, **more: str) -> str:
    """Run a command that must succeed; return what it prints."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWHEEL_")}
    environment = given | {"NO_COLOR": "1", "COLUMNS": "200"} | more
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels of a copy of the sources as git has them, the client's first."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheels")
    for name in run("git", "ls-files", "-z").split("\0"):
        if name and not name.startswith(("tests/", "benchmarks/")) and (ROOT / name).is_file():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, sources / name)
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", built)
    run(sys.executable, *build, sources / CLIENT, sources)
    return [next(built.glob(f"{name}-*.whl")) for name in ("tidewheel_client", "tidewheel")]


def installed(folder: Path, case: Case, requirements: list[str], wheels: list[Path]) -> Path:
    """Make an environment; return its Python."""
    base = python_of(case.python)
    if base is None:
        pytest.skip(f"Python {case.python} is not installed: uv python install {case.python}")
    uv = Path(sys.executable).with_name("uv")
    run(uv, "venv", "--quiet", "--python", base, folder)
    python = folder / "bin" / "python"
    (folder / "requirements.txt").write_text("\n".join(requirements))
    resolved = ("--only-binary", ":all:", "--resolution", case.end)
    run(uv, "pip", "install", "--quiet", "--python", python, *resolved, "-r", folder / "requirements.txt")
    run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", *wheels)
    print(" ".join(run(uv, "pip", "freeze", "--python", python).split()))
    return python


@contextmanager
def serving(folder: Path) -> Iterator[BrokerProcess]:
    """A broker of the tests' own environment."""
    broker = BrokerProcess(folder)
    broker.start()
    yield broker
    broker.stop()


APPLICATION: Final = """
import asyncio
import pydantic
from tidewheel import AsyncClient, Client, NewMessage


class Order(pydantic.BaseModel):
    number: int


with Client() as client:
    client.send("orders", Order(number=7))
    client.send("orders", "unpaid", delay="1h", key="order:7")
    assert client.timer("orders", "order:7").cancel().is_done
    (got,) = client.receive("orders", group="billing", wait="10s")
    assert got.json(Order) == Order(number=7)
    got.ack()


async def main() -> None:
    async with AsyncClient() as client:
        await client.send_many([NewMessage("orders", "8"), NewMessage("orders", b"9")])
        for message in await client.receive("orders", group="billing", count=2, wait="10s"):
            await message.ack()


asyncio.run(main())
"""


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_client(case: Case, wheels: list[Path], tmp_path: Path) -> None:
    requirements = requirements_of(CLIENT, "models")
    python = installed(tmp_path / "python", case, requirements, wheels[:1])
    with serving(tmp_path) as broker:
        run(python, "-c", APPLICATION, cwd=tmp_path, TIDEWHEEL_HTTP=f"http://{broker.http}")


TRANSACTION: Final = """
import sys
from rocketmq import ClientConfiguration, Credentials, Message, Producer
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker
from tidewheel import Barrier

engine = create_engine("sqlite:///shop.db")
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
barrier = Barrier(sessionmaker(engine))
barrier.create_table()
producer = Producer(ClientConfiguration(sys.argv[1], Credentials()), ["paid"], barrier)
producer.startup()
message = Message()
message.topic, message.body = "paid", b"7"
with barrier.transaction(producer, message) as session:
    session.execute(text("INSERT INTO orders VALUES (7)"))
producer.shutdown()
"""


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_transactions_with_the_official_client(case: Case, wheels: list[Path], tmp_path: Path) -> None:
    python = installed(tmp_path / "python", case, requirements_of(CLIENT, "txn", "rocketmq"), wheels[:1])
    with serving(tmp_path) as broker:
        broker.post("/api/topics", {"name": "paid", "message_type": "TRANSACTION"})
        run(python, "-c", TRANSACTION, broker.listen, cwd=tmp_path, HOME=str(tmp_path))
        asked = {"topic": "paid", "wait": "10s"}
        (got,) = broker.post("/api/groups/billing/receive", asked)["messages"]
        assert got["body"] == "7"


BROKER: Final = """
import sys, pathlib
from tidewheel.testing.process import BrokerProcess
broker = BrokerProcess(pathlib.Path(sys.argv[1]))
broker.start()
print(broker.http, broker.listen, flush=True)
sys.stdin.read()
broker.stop()
"""
BROKERS_OWN: Final = """
import sys
from tidewheel import Client
from tidewheel.command import broker_path
with Client() as client:
    client.send("orders", "7", tag="paid", properties={"total": "12"})
    client.send("orders", "8", delay="1h", key="order:8")
    assert client.receive("orders", group="big", wait="1s", sql="total > 20") == []
    (got,) = client.receive("orders", group="small", wait="10s", sql="total < 20")
    assert got.text == "7"
sys.path.insert(0, str(broker_path()))
import services.cluster.forwarding.calls
"""
NODES_OWN: Final = """
import asyncio
import sys
import grpc

async def main():
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        call = channel.unary_unary("/apache.rocketmq.v2.MessagingService/QueryRoute", None, None)
        assert await call(b"", metadata=(("x-mq-client-id", "bounds"),), timeout=30)

asyncio.run(main())
"""


def send_large(listen: str) -> None:
    """Send a message over gRPC that is so large that its fields are counted before it is parsed."""
    message = wire.Message(topic=wire.Resource(name="large"), body=bytes(COUNTED_ABOVE_BYTES))
    message.system_properties.message_id = "01" + 30 * "A"
    message.system_properties.message_type = wire.NORMAL
    with grpc.insecure_channel(listen) as channel:
        send = channel.unary_unary(
            f"/{service.DESCRIPTOR.services_by_name['MessagingService'].full_name}/SendMessage",
            service.SendMessageRequest.SerializeToString,
            service.SendMessageResponse.FromString,
        )
        reply = send(service.SendMessageRequest(messages=[message]), metadata=(("x-mq-client-id", "bounds"),))
    assert reply.status.code == wire.Code.OK, reply


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_broker(case: Case, wheels: list[Path], tmp_path: Path) -> None:
    """Each library has something to do: HTTP, gRPC, a filter, cron, TLS, a user, metrics, commands."""
    requirements = [*requirements_of(CLIENT), *requirements_of(".", "grpc")]
    python = installed(tmp_path / "python", case, requirements, wheels)
    command = python.with_name("tidewheel")
    with subprocess.Popen(
        [python, "-c", BROKER, tmp_path],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        http, listen = process.stdout.readline().split()

        def told(*words: str) -> str:
            return run(command, *words, cwd=tmp_path, TIDEWHEEL_HTTP=http)

        run(python, "-c", BROKERS_OWN, cwd=tmp_path, TIDEWHEEL_HTTP=http)
        assert "order:8" in told("timer", "ls")
        told("schedule", "set", "daily", "--cron", "30 9 * * mon-fri", "--topic", "orders", "--body", "x")
        assert "orders" in told("topic", "ls")
        told("auth", "user", "add", "shop")
        examined = told("doctor", "client", listen, "--topic", "orders")
        assert "HTTP/2 is spoken within TLS" in examined
        assert "orders has" in examined
        run(python, "-c", NODES_OWN, listen, cwd=tmp_path)
        send_large(listen)
        for path, found in (("/metrics", b"tidewheel_"), ("/openapi.json", b"/api/messages")):
            with urlopen(f"http://{http}{path}", timeout=SECONDS) as answer:
                assert found in answer.read()
        process.stdin.close()
        assert process.wait(SECONDS) == 0
