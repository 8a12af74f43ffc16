"""What goes wrong around a cluster, with real servers and real nodes: each ends in a sentence, none in loss.

    TIDEWHEEL_LONG=1 .venv/bin/python -m pytest tests/endurance/test_cluster_bad_input.py -s

Each test lets one thing go wrong, waits until the nodes say so where an operator looks (`cluster status`,
/readyz, their log), and mends it: what was acknowledged is there, once. The cases that take a fraction of a
second, of one call or one setting, are in `tests/unit/sharedlog`; those of load in `test_cluster_kill`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest

from sharedlog.engines import engine_of
from tests.acceptance.test_cluster import Node, SmallNode
from tests.command import tidewheel
from tests.endurance import sick_clock
from tests.endurance.sick_clock import SickClock
from tests.endurance.sick_disk import NoCompiler
from tests.kafka_cluster import KafkaCluster, running_kafka
from tests.postgresql import USER, PostgresServer, running_servers

pytestmark = pytest.mark.skipif(
    "TIDEWHEEL_LONG" not in os.environ, reason="servers that go wrong, for minutes: make test-cluster"
)
WAIT_SECONDS = 90.0
STILL_SECONDS = 30.0
TOPIC = "orders"
QUICK = "broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=500\n"
SOON_DELETED = "log.retention.check.interval.ms=500\nlog.segment.delete.delay.ms=100\n"
PASSWORDS = """listeners=SASL_PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=SASL_PLAINTEXT://{host}:{port}
inter.broker.listener.name=SASL_PLAINTEXT
listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="server" password="own" user_server="own" user_app="right";
"""
NO_ENTRY = "Authentication failed"
SAYS_NOTHING = "The shared log has not answered for"
RESTORE = "tidewheel cluster restore NEW-URL --from STORE"


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    ends = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.1)


def send(node: Node, body: str) -> subprocess.CompletedProcess[str]:
    """Send a message by a node."""
    return tidewheel("send", TOPIC, body, "--http", node.http)


def status(node: Node) -> str:
    """What an operator is shown."""
    return str(tidewheel("cluster", "status", "--http", node.http).stdout)


def readyz(node: Node) -> tuple[int, str]:
    """What a load balancer is told."""
    try:
        with urlopen(f"http://{node.http}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        return refused.code, refused.read().decode()


def doctor(url: str) -> str:
    """What `cluster doctor` finds."""
    done = tidewheel("cluster", "doctor", url)
    assert "Traceback" not in done.stderr, done.stderr
    return str(done.stdout + done.stderr)


def leader_of(nodes: list[Node]) -> Node:
    """The node that leads, once one does."""
    until(lambda: any(node.role() == "leading" for node in nodes))
    return next(node for node in nodes if node.role() == "leading")


@contextmanager
def followed(node: Node) -> Iterator[None]:
    """Wait, behind the block, until a node that follows has read what was written in it."""
    had = node.view()["end_offset"]
    yield
    until(lambda: node.view()["end_offset"] > had)


def bodies(node: Node, count: int) -> list[str]:
    """Receive what there is, so many at least: each as often as it came."""
    found: list[tuple[str, bytes]] = []
    until(lambda: found.extend(node.receive(TOPIC)) or len(found) >= count)
    return sorted(body.decode() for _, body in found)


@contextmanager
def running_nodes(folder: Path, url: str, names: str = "ab", kind: type[Node] = Node) -> Iterator[list[Node]]:
    """Begin a cluster, and run its nodes; none may say a traceback, and each must end as it is told."""
    made = tidewheel("cluster", "create", url, "--segment-bytes", 8 << 20)
    assert made.returncode == 0, made.stderr
    nodes = [kind(folder, name, url) for name in names]
    try:
        for node in nodes:
            node.start()
        yield nodes
        for node in nodes:
            assert node.process is None or node.process.poll() is not None or node.stop() == 0
    finally:
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                node.kill()
    for node in nodes:
        assert "Traceback" not in node.log(), node.log()[-5_000:]


def all_halt(nodes: list[Node], *said: str) -> None:
    """Wait until all nodes have halted, and say so everywhere."""
    until(lambda: all(node.role() == "halted" for node in nodes))
    for node in nodes:
        shown, (code, ready) = status(node), readyz(node)
        for text in (shown, ready, node.log()):
            assert all(one in text for one in (*said, RESTORE)), text
        assert code == 503
        refused = send(node, "to a node that halted")
        assert refused.returncode == 1
        assert "TW-254" in refused.stderr, refused.stderr


# PostgreSQL.


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[Any]:
    with running_servers(standbys=getattr(request, "param", 0)) as found:
        yield found


@pytest.mark.parametrize("seen_by_all", [True, False])
def test_who_has_seen_what_a_promoted_standby_lacks_halts(
    tmp_path: Path, servers: Any, seen_by_all: bool
) -> None:
    primary, standby = servers.primary, PostgresServer("late", ())
    standby.make_standby_of(str(primary.folder))
    standby.start()
    folders = f"{primary.folder},{standby.folder}"
    url = f"postgresql://{USER}@/postgres?host={folders}&target_session_attrs=read-write"
    try:
        with running_nodes(tmp_path, url) as nodes:
            leader = leader_of(nodes)
            (other,) = (node for node in nodes if node is not leader)
            with followed(other):
                assert send(leader, "one").returncode == 0
            standby.stop()
            assert other.process is not None
            if not seen_by_all:
                other.process.send_signal(signal.SIGSTOP)
            with followed(other) if seen_by_all else nullcontext():
                assert send(leader, "two").returncode == 0
            primary.kill()
            standby.start()
            standby.promote()
            if seen_by_all:
                all_halt(nodes, "this PostgreSQL", "has lost the log's end")
                return
            # Who has not seen it cannot know; who has says so, and keeps it.
            other.process.send_signal(signal.SIGCONT)
            until(lambda: leader.role() == "halted" and other.role() == "leading")
            assert "has lost the log's end" in status(leader)
            assert RESTORE in status(leader)
    finally:
        standby.stop()
        standby.forget()


@contextmanager
def standing_still(servers: list[PostgresServer]) -> Iterator[None]:
    """Let servers stand still while the block lasts."""
    for server in servers:
        server.pause()
    try:
        yield
    finally:
        for server in servers:
            server.go_on()


@pytest.mark.parametrize("servers", [2], indirect=True)
def test_servers_that_stand_still_for_30_s_lose_nothing(tmp_path: Path, servers: Any) -> None:
    with running_nodes(tmp_path, servers.url) as nodes:
        leader = leader_of(nodes)
        assert send(leader, "one").returncode == 0
        ends = time.monotonic() + STILL_SECONDS
        with standing_still([servers.primary, *servers.standbys]):
            for node in nodes:
                # mypy infers no type for a lambda's default.
                until(lambda node=node: SAYS_NOTHING in status(node))  # type: ignore[misc]  # a lambda with a default
            code, said = readyz(leader)
            assert (code, SAYS_NOTHING in said) == (503, True), said
            late = send(leader, "two")
            assert (late.returncode, "See whether it was done" in late.stderr) == (3, True), late
            until(lambda: time.monotonic() > ends)
        until(lambda: readyz(leader_of(nodes))[0] == 200)
        assert send(leader_of(nodes), "three").returncode == 0
        got = bodies(leader_of(nodes), 2)
        assert got in (["one", "three"], ["one", "three", "two"])


@pytest.mark.parametrize("servers", [2], indirect=True)
def test_without_any_standby_nothing_is_acknowledged(tmp_path: Path, servers: Any) -> None:
    with running_nodes(tmp_path, servers.url) as nodes:
        leader = leader_of(nodes)
        assert send(leader, "one").returncode == 0
        for standby in servers.standbys:
            standby.kill()
        missed = "needs 1 in step; now: none"
        until(lambda: SAYS_NOTHING in status(leader) and missed in status(leader))
        refused = send(leader, "two")
        assert (refused.returncode, "TW-259" in refused.stderr) == (1, True), refused
        assert missed in refused.stderr
        assert missed in doctor(servers.url)
        for standby in servers.standbys:
            standby.start()
        until(lambda: send(leader_of(nodes), "three").returncode == 0)
        assert set(bodies(leader_of(nodes), 2)) >= {"one", "three"}


def test_a_full_postgresql_refuses_and_goes_on_when_there_is_room(tmp_path: Path, servers: Any) -> None:
    with small_disk(servers.primary.folder / "small", 48) as disk:
        with psycopg.connect(servers.url, autocommit=True) as asked:
            asked.execute(f"CREATE TABLESPACE small LOCATION '{disk}/data'".encode())
            asked.execute("CREATE DATABASE orders TABLESPACE small")
        url = servers.url.replace("/postgres?", "/orders?")
        with running_nodes(tmp_path, url) as nodes:
            leader = leader_of(nodes)
            assert send(leader, "one").returncode == 0
            filled = disk / "filled"
            fill(filled)
            until(lambda: all("No space left on device" in status(node) for node in nodes))
            assert all("No space left on device" in readyz(node)[1] for node in nodes)
            refused = send(nodes[0], "two")
            assert (refused.returncode, "TW-254" in refused.stderr) == (1, True), refused
            filled.unlink()
            until(lambda: send(leader_of(nodes), "three").returncode == 0)
            assert set(bodies(leader_of(nodes), 2)) >= {"one", "three"}


def fill(path: Path) -> None:
    """Write a file until its disk has no room."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 12)):
            pass


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """Mount a file system of so many MiB at a folder of the server's; skips the test without the right to."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system of its own size needs the right to mount a tmpfs")
    try:
        data = folder / "data"
        data.mkdir()
        owner = folder.parent.stat()
        os.chown(data, owner.st_uid, owner.st_gid)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_credentials_that_turn_wrong_are_told_and_mended(tmp_path: Path, servers: Any) -> None:
    with psycopg.connect(servers.url, autocommit=True) as asked:
        asked.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
        asked.execute("CREATE DATABASE orders OWNER app")
        access = servers.primary.folder / "data" / "pg_hba.conf"
        access.write_text("local orders app scram-sha-256\n" + access.read_text())
        asked.execute("SELECT pg_reload_conf()")
        url = f"postgresql://app:PASSWORD@/orders?host={servers.primary.folder}"
        until(lambda: tidewheel("cluster", "create", url).returncode)
        wrong = tidewheel("cluster", "create", url)
        assert wrong.returncode == 1
        assert "password authentication failed" in wrong.stderr
        assert "PASSWORD" not in wrong.stderr
        with running_nodes(tmp_path, url.replace("PASSWORD", "right")) as nodes:
            assert send(leader_of(nodes), "one").returncode == 0
            asked.execute("ALTER ROLE app PASSWORD 'another'")
            asked.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
            until(lambda: all("password authentication failed" in status(node) for node in nodes))
            assert all("password authentication failed" in readyz(node)[1] for node in nodes)
            asked.execute("ALTER ROLE app PASSWORD 'right'")
            until(lambda: send(leader_of(nodes), "three").returncode == 0)
            asked.execute("ALTER ROLE app CONNECTION LIMIT 0")
            asked.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
            until(lambda: all("too many connections" in status(node) for node in nodes))
            asked.execute("ALTER ROLE app CONNECTION LIMIT -1")
            until(lambda: send(leader_of(nodes), "four").returncode == 0)
            assert set(bodies(leader_of(nodes), 3)) >= {"one", "three", "four"}
        assert "right" not in nodes[0].log() + nodes[1].log()


def test_a_postgresql_without_a_connection_left_is_told_and_mended(tmp_path: Path, servers: Any) -> None:
    with psycopg.connect(servers.url, autocommit=True) as asked, ExitStack() as taken:
        asked.execute("CREATE ROLE app LOGIN")
        asked.execute("CREATE DATABASE orders OWNER app")
        url = f"postgresql://app@/orders?host={servers.primary.folder}"
        with running_nodes(tmp_path, url) as nodes:
            assert send(leader_of(nodes), "one").returncode == 0
            with suppress(psycopg.OperationalError):  # what is left is for superusers
                while True:
                    taken.enter_context(psycopg.connect(url, application_name="taken"))
            no_more = "remaining connection slots are reserved"
            ours = "usename = 'app' AND application_name != 'taken'"

            def are_all_refused() -> bool:
                # Once is not enough: a node may be the first to take what its session has left.
                asked.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}".encode())
                with suppress(psycopg.OperationalError):
                    taken.enter_context(psycopg.connect(url, application_name="taken"))
                return all(no_more in status(node) for node in nodes)

            until(are_all_refused)
            assert all(no_more in readyz(node)[1] for node in nodes)
            assert no_more in doctor(url)
            taken.close()
            until(lambda: send(leader_of(nodes), "two").returncode == 0)
            assert set(bodies(leader_of(nodes), 2)) >= {"one", "two"}


def test_tables_that_are_dropped_halt_all(tmp_path: Path, servers: Any) -> None:
    with running_nodes(tmp_path, servers.url) as nodes:
        assert send(leader_of(nodes), "one").returncode == 0
        with psycopg.connect(servers.url, autocommit=True) as asked:
            asked.execute("DROP TABLE tidewheel_record, tidewheel_head")
        all_halt(nodes, "has no tables tidewheel_head and tidewheel_record")
        assert nodes[0].stop() == 0
        ended = ended_start(nodes[0])
        assert RESTORE in ended
        assert "Traceback" not in ended
        assert tidewheel("cluster", "create", servers.url).returncode == 0
        assert "If the shared log of that one is gone: tidewheel cluster restore" in ended_start(nodes[0])


def ended_start(node: Node) -> str:
    """Start a node that ends at once; return what it said."""
    said = len(node.log())
    with pytest.raises(AssertionError):
        node.start()
    return node.log()[said:]


# Nodes.


def test_two_nodes_of_one_name_are_told_apart(tmp_path: Path, servers: Any) -> None:
    with running_nodes(tmp_path, servers.url) as nodes:
        leader = leader_of(nodes)
        assert send(leader, "one").returncode == 0
        twin = Node(tmp_path / "elsewhere", leader.store.name, servers.url)
        twin.store.parent.mkdir()
        twin.start()
        until(lambda: twin.role() == "halted")
        said = (
            f"Another process is node {leader.store.name} of this cluster too, and leads at {leader.listen}"
        )
        assert said in status(twin)
        assert said in readyz(twin)[1]
        assert send(leader, "two").returncode == 0
        assert twin.stop() == 0
        # The same store, started again soon, is no twin.
        leader.kill()
        leader.start()
        until(lambda: {node.role() for node in nodes} == {"leading", "following"})
        assert bodies(leader, 2) == ["one", "two"]


def test_a_node_whose_clock_is_an_hour_ahead_leads_only_alone(tmp_path: Path, servers: Any) -> None:
    try:
        library = sick_clock.build(tmp_path)
    except NoCompiler:
        pytest.skip("a clock that steps is a C library, and there is no compiler")
    clock = SickClock(library, tmp_path / "clock")
    clock.be_off_by(3_600_000)
    with running_nodes(tmp_path, servers.url, "bc") as nodes:
        assert send(leader_of(nodes), "one").returncode == 0
        ahead = Node(tmp_path, "a", servers.url)
        ahead.environment = {**os.environ, **clock.variables()}
        ahead.start()
        nodes.append(ahead)
        until(lambda: "its clock is off" in status(ahead))
        assert "ahead of the engine's" in status(ahead)
        first = leader_of(nodes)
        first.kill()
        second = leader_of([node for node in nodes if node is not first])
        assert second is not ahead, "first by its name, and it may not stand before others"
        later = tidewheel("send", TOPIC, "later", "--in", "30m", "--http", second.http)
        assert later.returncode == 0
        second.kill()
        assert leader_of([ahead]) is ahead
        assert send(ahead, "two").returncode == 0
        got = bodies(ahead, 3)
        assert got == ["later", "one", "two"], "due by the clock of who leads"
        first.start()
        until(lambda: first.role() == "leading")  # who leads with a wrong clock hands over
        soon = tidewheel("send", TOPIC, "soon", "--in", "3s", "--http", first.http)
        assert soon.returncode == 0, soon.stderr
        until(lambda: "soon" in bodies(first, 1))  # and what was not acknowledged comes again


# Kafka.


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    with running_kafka(getattr(request, "param", 1), QUICK + SOON_DELETED) as cluster:
        yield cluster


def admin_of(kafka: KafkaCluster) -> Any:
    """What changes topics."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": kafka.bootstrap, "socket.timeout.ms": 5_000})


def done(futures: dict[Any, Any]) -> None:
    """Wait until requests are answered."""
    for future in futures.values():
        future.result(30)


def test_a_topic_that_is_deleted_halts_all(tmp_path: Path, kafka: KafkaCluster) -> None:
    url = kafka.url("orders")
    with running_nodes(tmp_path, url) as nodes:
        assert send(leader_of(nodes), "one").returncode == 0
        admin = admin_of(kafka)  # kept until it has answered: it does not without a name
        done(admin.delete_topics(["orders"]))
        until(lambda: all("Unknown topic" in status(node) for node in nodes))
        all_halt(nodes, "has no topic orders, and had it before", "it was deleted")
        assert nodes[1].stop() == 0
        said = ended_start(nodes[1])
        assert "has no topic orders" in said
        assert RESTORE in said


def test_a_topic_that_is_made_anew_while_nodes_run_halts_all(tmp_path: Path, kafka: KafkaCluster) -> None:
    url = kafka.url("orders")
    with running_nodes(tmp_path, url) as nodes:
        assert send(leader_of(nodes), "one").returncode == 0
        admin = admin_of(kafka)
        done(admin.delete_topics(["orders"]))
        until(lambda: tidewheel("cluster", "create", url).returncode == 0)
        all_halt(nodes, "Kafka has lost the log's end")
        assert nodes[1].stop() == 0
        assert "If the shared log of that one is gone: tidewheel cluster restore" in ended_start(nodes[1])
        fresh = Node(tmp_path, "c", url)  # a line of the cluster that was may lie before the GENESIS
        nodes.append(fresh)
        fresh.start()
        until(lambda: fresh.role() == "leading")
        assert send(fresh, "two").returncode == 0


def test_stray_lines_are_stepped_over_and_told(tmp_path: Path, kafka: KafkaCluster) -> None:
    from confluent_kafka import Producer

    with running_nodes(tmp_path, kafka.url("orders")) as nodes:
        leader = leader_of(nodes)
        assert send(leader, "one").returncode == 0
        console = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(20):
            console.produce("orders", b"hello" * number, partition=0)
            assert console.flush(10) == 0
        for node in nodes:
            # mypy infers no type for a lambda's default.
            until(lambda node=node: "20 lines in the shared log that no node wrote" in status(node))  # type: ignore[misc]  # a lambda with a default
            assert "somebody else writes into the shared log" in node.log()
        assert leader_of(nodes) is leader
        assert send(leader, "two").returncode == 0
        assert bodies(leader, 2) == ["one", "two"]


def first_record(url: str) -> int:
    """The first record that is left in a shared log."""
    with closing(engine_of(url)) as engine:
        return engine.bounds()[0]


def test_a_short_retention_is_told_and_a_node_that_was_away_gets_a_copy(
    tmp_path: Path, kafka: KafkaCluster
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    url, admin = kafka.url("orders"), admin_of(kafka)
    with running_nodes(tmp_path, url, "abc", SmallNode) as nodes:
        leader = leader_of(nodes)
        assert send(leader, "one").returncode == 0
        away = next(node for node in nodes if node is not leader)
        assert away.stop() == 0
        short = {"retention.ms": "5000", "segment.ms": "1000"}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in short.items()
        ]
        topic = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=entries)
        done(admin.incremental_alter_configs([topic]))
        until(lambda: "retention.ms of the topic orders is 5000" in status(leader))
        refused = send(leader, "two")
        assert "TW-259" in refused.stderr, refused
        assert "--add-config retention.ms=-1" in refused.stderr
        needs = leader.view()["copies"][away.store.name]["next_record"]
        until(lambda: first_record(url) > needs)
        away.start()
        until(lambda: "copied" in away.log() and away.role() in ("following", "leading"))
        mended = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[mended])
        done(admin.incremental_alter_configs([topic]))
        until(lambda: send(leader_of(nodes), "three").returncode == 0)
        assert set(bodies(leader_of(nodes), 2)) >= {"one", "three"}


def test_a_password_that_kafka_takes_no_more_is_told_and_mended(tmp_path: Path) -> None:
    with running_kafka(1, QUICK + PASSWORDS) as kafka:
        asks = "security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"
        url = f"kafka://app:PASSWORD@{kafka.bootstrap}/orders?{asks}"
        wrong = tidewheel("cluster", "create", url)
        assert wrong.returncode == 1
        assert NO_ENTRY in wrong.stderr
        assert "PASSWORD" not in wrong.stderr
        with running_nodes(tmp_path, url.replace("PASSWORD", "right")) as nodes:
            assert send(leader_of(nodes), "one").returncode == 0
            with_password(kafka, "right", "another")
            until(lambda: all(NO_ENTRY in status(node) for node in nodes))
            assert all(NO_ENTRY in readyz(node)[1] for node in nodes)
            with_password(kafka, "another", "right")
            until(lambda: send(leader_of(nodes), "two").returncode == 0)
            assert set(bodies(leader_of(nodes), 2)) >= {"one", "two"}
        assert not [one for one in nodes if "app:right" in one.log()]


def test_another_password_of_kafka_needs_no_restart_of_a_node(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("right\n")
    with running_kafka(1, QUICK + PASSWORDS) as kafka:
        asks = f"security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN&password_file={file}"
        url = f"kafka://app@{kafka.bootstrap}/orders?{asks}"
        with running_nodes(tmp_path, url) as nodes:
            assert send(leader_of(nodes), "one").returncode == 0
            with_password(kafka, "right", "another")
            until(lambda: all(NO_ENTRY in status(node) for node in nodes))
            refused = tidewheel("cluster", "doctor", url)
            assert refused.returncode == 1
            assert NO_ENTRY in refused.stdout
            assert f"read from {file} for each connection" in refused.stdout.replace("\n", " ")
            file.write_text("another\n")
            until(lambda: send(leader_of(nodes), "two").returncode == 0)
            assert set(bodies(leader_of(nodes), 2)) >= {"one", "two"}


def with_password(kafka: KafkaCluster, before: str, after: str) -> None:
    """Let the user `app` have another password, for which a server starts again."""
    (server,) = kafka.nodes
    server.stop()
    settings = server.folder / "settings"
    settings.write_text(settings.read_text().replace(f'user_app="{before}"', f'user_app="{after}"'))
    server.start()
    server.wait()


@pytest.mark.parametrize("kafka", [3], indirect=True)
def test_a_kafka_without_quorum_takes_nothing_and_goes_on(tmp_path: Path, kafka: KafkaCluster) -> None:
    url = kafka.url("orders")
    with running_nodes(tmp_path, url) as nodes:
        assert send(leader_of(nodes), "one").returncode == 0
        for server in kafka.nodes[1:]:
            server.kill()
        until(lambda: all(node.view()["unanswered"] for node in nodes))
        refused = send(nodes[0], "two")
        assert refused.returncode in (1, 3), refused
        for server in kafka.nodes[1:]:
            server.start()
        until(lambda: send(leader_of(nodes), "three").returncode == 0)
        assert set(bodies(leader_of(nodes), 2)) >= {"one", "three"}


def test_an_unclean_election_that_loses_the_end_halts_all(tmp_path: Path) -> None:
    from confluent_kafka import ElectionType, KafkaException, TopicPartition

    with running_kafka(5, QUICK) as kafka, running_nodes(tmp_path, kafka.url("orders")) as nodes:
        admin = admin_of(kafka)
        place = admin.list_topics("orders", timeout=10).topics["orders"].partitions[0]
        by_number = {server.number: server for server in kafka.nodes}
        stale = by_number[next(one for one in place.replicas if one != place.leader)]
        stale.kill()
        until(lambda: send(leader_of(nodes), "one").returncode == 0)
        until(lambda: send(leader_of(nodes), "two").returncode == 0)
        for number in place.replicas:
            if number != stale.number:
                by_number[number].kill()
        stale.start()
        stale.wait()

        def elected() -> bool:
            with suppress(KafkaException, TimeoutError):  # while the servers look for a controller
                asked, wanted = admin_of(kafka), [TopicPartition("orders", 0)]
                asked.elect_leaders(ElectionType.UNCLEAN, wanted).result(10)
                found = asked.list_topics("orders", timeout=10).topics["orders"].partitions[0]
                return bool(found.leader == stale.number)
            return False

        until(elected)
        for number in place.replicas:  # a leader alone does not tell where its log ends
            if number != stale.number:
                by_number[number].start()
        all_halt(nodes, "Kafka has lost the log's end")
