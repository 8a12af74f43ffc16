"""A cluster in an upgrade: nodes of the release before beside nodes of this one, on PostgreSQL and Kafka.

No release has been made yet. So the nodes of before run this program, and those of now the same, but that it
supports one version of records more (`tests/endurance/small_checkpoint_node.py`).

    TIDEWHEEL_LONG=1 .venv/bin/python -m pytest tests/acceptance/test_mixed_versions.py

A node is upgraded, or goes back, by a stop and a start over the same store. What was acknowledged must be
read from either, whichever leads; what a cluster has finalized shuts the older program out with a sentence.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

import pytest

from services.rpc.generated import definition_pb2, service_pb2
from services.rpc.generated.timestamp_pb2 import Timestamp
from sharedlog import postgres
from sharedlog.versions import OLDEST, SUPPORTED
from tests.acceptance import test_cluster
from tests.acceptance.test_cluster import SEGMENT_BYTES, Client, SmallNode, leader_of
from tests.command import tidewheel
from tests.kafka_cluster import KafkaCluster, running_kafka
from tests.postgresql import running_postgresql
from tidewheel.property_names import TIMER_KEY

TOPICS: Final = {"plain": "normal", "later": "delay", "fifo": "fifo", "bought": "transaction"}
PROPERTIES_MAX: Final = 6
CHECKPOINT_RECORDS: Final = "20"
NEWER: Final = SUPPORTED + 1
KINDS: Final = definition_pb2.MessageType
EVENTUALLY_SECONDS: Final = 60

PLAYS: Final = (
    test_cluster.test_a_move_fails_no_call,
    partial(test_cluster.test_the_next_leader_knows_clients_and_what_they_were_told, how="killed"),
    partial(test_cluster.test_the_next_leader_knows_clients_and_what_they_were_told, how="moved"),
)
"""Tests of two nodes of this release."""

pytestmark = pytest.mark.skipif("TIDEWHEEL_LONG" not in os.environ, reason="upgrades: make test-cluster")


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with running_postgresql(syncs=True) as url:
        yield url.replace("postgresql+psycopg", "postgresql")


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with running_kafka() as cluster:
        yield cluster


class MixedNode(SmallNode):
    """A node that is run by a program of before or of now, which differ in the versions that they support."""

    def run_by(self, program: str) -> None:
        """Start it, or stop it and start it again, by the program `before` or `now`."""
        self._choose(program)
        self.start()

    def _choose(self, program: str) -> None:
        if self.process is not None and self.process.poll() is None:
            assert self.stop() == 0, self.log()[-3_000:]
        supported = SUPPORTED if program == "before" else NEWER
        self.environment = os.environ | {
            "SUPPORTED_VERSION": str(supported),
            "CHECKPOINT_RECORDS": CHECKPOINT_RECORDS,
        }


class Traffic:
    """Messages of all kinds that were acknowledged, and what must be read of each topic."""

    def __init__(self) -> None:
        self._numbers = count()
        self.sent: dict[str, set[str]] = {topic: set() for topic in TOPICS}
        self.verdicts: dict[str, str] = {}
        """What a cancel of a timer is told, by its key."""

    def go_on(self, node: MixedNode) -> None:
        """Send some of each kind through a node."""
        client = Client(node, f"c{next(self._numbers)}", producer())
        try:
            for properties in range(PROPERTIES_MAX + 1):
                self._send(client, "plain", user={f"p{one}": f"v{one}" for one in range(properties)})
            for number in range(4):
                self._send(client, "fifo", message_type=KINDS.FIFO, message_group=f"g{number % 2}")
            self.verdicts |= {
                self._set_timer(client, 2): "TOO_LATE",
                self._set_timer(client, 3_600): "CANCELLED",
            }
            for resolution in (definition_pb2.COMMIT, definition_pb2.ROLLBACK):
                self._transact(client, resolution)
        finally:
            client.close()

    def _set_timer(self, client: Client, seconds: int) -> str:
        """Set a timer that is due in so many seconds; return its key. One that is due soon must be read."""
        key, due = f"k{next(self._numbers)}", Timestamp(seconds=int(time.time()) + seconds)
        sent = self._send(
            client, "later", user={TIMER_KEY: key}, message_type=KINDS.DELAY, delivery_timestamp=due
        )
        if seconds > EVENTUALLY_SECONDS:
            self.sent["later"].remove(sent.message_id)
        return key

    def _send(self, client: Client, topic: str, *, user: dict[str, str] | None = None, **system: Any) -> Any:
        message_id = f"{topic}-{next(self._numbers)}"
        properties = definition_pb2.SystemProperties(message_id=message_id, **system)
        resource = definition_pb2.Resource(name=topic)
        message = definition_pb2.Message(
            topic=resource, body=message_id.encode(), system_properties=properties, user_properties=user or {}
        )
        entry = client.call(service_pb2.SendMessageRequest(messages=[message])).entries[0]
        again = client.call(service_pb2.SendMessageRequest(messages=[message])).entries[0]
        assert again.message_id == entry.message_id
        if system.get("message_type") != KINDS.TRANSACTION:
            self.sent[topic].add(message_id)
        return entry

    def _transact(self, client: Client, resolution: Any) -> None:
        half = self._send(client, "bought", message_type=KINDS.TRANSACTION)
        end = service_pb2.EndTransactionRequest(
            topic=definition_pb2.Resource(name="bought"),
            message_id=half.message_id,
            transaction_id=half.transaction_id,
            resolution=resolution,
            source=definition_pb2.TransactionSource.SOURCE_CLIENT,
        )
        client.call(end)
        if resolution == definition_pb2.COMMIT:
            self.sent["bought"].add(half.message_id)


def producer() -> definition_pb2.Settings:
    """The settings of a producer."""
    settings = definition_pb2.Settings(client_type=definition_pb2.ClientType.PRODUCER)
    settings.publishing.validate_message_type = True
    return settings


def read_all(node: MixedNode, topic: str, group: str, wanted: set[str]) -> None:
    """Read a topic in the name of a group, acknowledging, until all that is wanted has come."""
    settings = definition_pb2.Settings(client_type=definition_pb2.ClientType.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    client, found = Client(node, f"reads-{group}", settings), set[str]()
    deadline = time.monotonic() + EVENTUALLY_SECONDS
    try:
        while not wanted <= found:
            assert time.monotonic() < deadline, f"{group} on {topic} lacks {sorted(wanted - found)}"
            for message in client.receive(topic, group):
                found.add(message.system_properties.message_id)
                entry = service_pb2.AckMessageEntry(
                    message_id=message.system_properties.message_id,
                    receipt_handle=message.system_properties.receipt_handle,
                )
                client.call(
                    service_pb2.AckMessageRequest(
                        topic=definition_pb2.Resource(name=topic),
                        group=definition_pb2.Resource(name=group),
                        entries=[entry],
                    )
                )
    finally:
        client.close()


class Upgrade:
    """Two nodes of a cluster that the release before has made, and what was sent to it."""

    def __init__(self, folder: Path, url: str, eventually: Callable[..., None]) -> None:
        self.url, self._eventually = url, eventually
        words = ("cluster", "create", self.url, "--segment-bytes", SEGMENT_BYTES)
        made = tidewheel(*words)
        assert made.returncode == 0, made.stderr
        self.a, self.b = (MixedNode(folder, name, self.url) for name in "ab")
        self.traffic, self._readings = Traffic(), count()

    def begin(self, a: str, b: str) -> None:
        """Start both, `a` first, which leads; make the topics."""
        self.a.run_by(a)
        self.wait_for(self.a, "leading")
        self.b.run_by(b)
        self.wait_for_follower()
        for topic, kind in TOPICS.items():
            made = tidewheel("topic", "create", topic, "--type", kind, "--http", self.a.http)
            assert made.returncode == 0, made.stderr

    def wait_for(self, node: MixedNode, role: str) -> None:
        """Wait until a node has a role; tell why it halted, if it has."""

        def has_come() -> bool:
            view = node.view()
            assert role == "halted" or view["role"] != "halted", view
            return bool(view["role"] == role)

        self._eventually(has_come)

    def wait_for_follower(self) -> None:
        """Wait until the follower has told the leader `a` how far it is: then it may be the next one."""
        self.wait_for(self.b, "following")
        self._eventually(lambda: self.a.view()["followers"].get("b", {}).get("heard_ms_ago") is not None)

    def leader(self) -> MixedNode:
        """The node that leads, once one of those that run does."""
        running = [one for one in (self.a, self.b) if one.process is not None and one.process.poll() is None]
        leader = leader_of(list(running), self._eventually)
        return next(one for one in running if one is leader)

    def lead(self, node: MixedNode) -> None:
        """Move the lead to a node, if another has it."""
        leader = self.leader()
        if leader is not node:
            self.wait_for(node, "following")
            moved = tidewheel("cluster", "move", node.name, "--http", leader.http)
            assert moved.returncode == 0, moved.stderr
            self.wait_for(node, "leading")
            self.wait_for(leader, "following")

    def finalize(self) -> None:
        """Finalize the newest version, once both have said that they support it."""
        words = ("cluster", "set-version", str(NEWER), "--http", self.a.http)
        self._eventually(lambda: tidewheel(*words).returncode == 0)

    def play(self) -> None:
        """Send through both nodes; what was told must be read from whoever leads, by a new group."""
        for node in (self.a, self.b):
            self.traffic.go_on(node)
            for verb in ("status", "nodes"):
                told = tidewheel("cluster", verb, "--http", node.http)
                assert (told.returncode, "Traceback" in told.stderr) == (0, False), told
        self.read()

    def read(self) -> None:
        """Read all that was told from whoever leads, by a new group; ended timers are known as ended."""
        leader, group = self.leader(), f"g{next(self._readings)}"
        for topic, wanted in self.traffic.sent.items():
            read_all(leader, topic, group, wanted)
        for key, verdict in self.traffic.verdicts.items():
            done = tidewheel("timer", "cancel", "--topic", "later", "--timer-key", key, "--http", leader.http)
            assert done.stdout.startswith(verdict), f"{leader.name}: {done}"
            if verdict == "CANCELLED":
                self.traffic.verdicts[key] = "ALREADY"

    def finish(self) -> None:
        """Stop both; this program finds nothing wrong in either store."""
        for node in (self.a, self.b):
            if node.process is not None and node.process.poll() is None:
                assert node.stop() == 0, node.log()[-3_000:]
            assert "Traceback" not in node.log(), node.log()[-5_000:]
            verified = tidewheel("store", "verify", "--store", node.store)
            assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.fixture(params=["postgresql"])
def upgrade(
    request: pytest.FixtureRequest, tmp_path: Path, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Upgrade]:
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 20)
    name = tmp_path.name
    if request.param == "kafka":
        url = request.getfixturevalue("kafka").url(name)
    else:
        url = f"{request.getfixturevalue('database')}&log={name}"
    one = Upgrade(tmp_path, url, eventually)
    yield one
    for node in (one.a, one.b):
        if node.process is not None and node.process.poll() is None:
            node.kill()


@pytest.mark.parametrize("upgrade", ["postgresql", "kafka"], indirect=True)
@pytest.mark.parametrize(("a", "b"), [("before", "now"), ("now", "before")])
def test_either_leads_and_reads_all_and_dies(upgrade: Upgrade, a: str, b: str) -> None:
    upgrade.begin(a, b)
    upgrade.play()
    for node, other in ((upgrade.b, upgrade.a), (upgrade.a, upgrade.b)):
        upgrade.lead(node)
        upgrade.play()
        node.kill()
        upgrade.wait_for(other, "leading")
        upgrade.read()
        node.start()
        upgrade.wait_for(node, "following")
        upgrade.play()
    upgrade.finish()


@pytest.mark.parametrize(("a", "b"), [("before", "now"), ("now", "before")])
@pytest.mark.parametrize("play", PLAYS)
def test_what_holds_in_a_cluster_holds_in_a_mixed_one(
    upgrade: Upgrade, eventually: Any, play: Callable[..., None], a: str, b: str
) -> None:
    upgrade.a.run_by(a)
    upgrade.wait_for(upgrade.a, "leading")
    upgrade.b.run_by(b)
    upgrade.wait_for_follower()
    play([upgrade.a, upgrade.b], eventually=eventually)


@pytest.mark.parametrize(("a", "b"), [("before", "now"), ("now", "before")])
def test_a_node_whose_disk_is_lost_gets_the_copy_of_a_node_of_the_other_release(
    upgrade: Upgrade, a: str, b: str, eventually: Any
) -> None:
    upgrade.begin(a, b)
    upgrade.play()
    eventually(lambda: upgrade.a.view()["trimmed_below"] > 20)
    assert upgrade.b.stop() == 0
    assert tidewheel("cluster", "forget", "b", "--http", upgrade.a.http).returncode == 0
    rmtree(upgrade.b.store)
    upgrade.b.run_by(b)
    eventually(lambda: '"event": "copied"' in upgrade.b.log())
    upgrade.wait_for_follower()
    upgrade.read()
    upgrade.lead(upgrade.b)
    for _ in range(3):
        upgrade.play()
    upgrade.finish()


def test_a_node_is_killed_and_goes_on_by_the_other_release(upgrade: Upgrade) -> None:
    """What its disk has, and what it has noted of the shared log, is of either."""
    upgrade.begin("now", "before")
    upgrade.traffic.go_on(upgrade.b)
    for number in range(6):
        node = (upgrade.a, upgrade.b)[number % 2]
        upgrade.traffic.go_on(node)
        node.kill()
        node.run_by(("before", "now")[(number + number // 2) % 2])
        upgrade.traffic.go_on(node)
        upgrade.read()
    upgrade.finish()


@pytest.mark.parametrize("upgrade", ["postgresql", "kafka"], indirect=True)
def test_nodes_are_upgraded_one_after_the_other_and_the_version_is_finalized(
    upgrade: Upgrade, tmp_path: Path
) -> None:
    upgrade.begin("before", "before")
    upgrade.play()
    for node in (upgrade.b, upgrade.a):
        node.run_by("now")
        upgrade.lead(node)
        upgrade.play()
        # An operator who is in doubt goes back.
        node.run_by("before")
        upgrade.lead(node)
        for _ in range(3):
            upgrade.play()
        refused = tidewheel("cluster", "set-version", str(NEWER), "--http", node.http)
        assert (refused.returncode, "TW-258" in refused.stderr) == (4, True), refused
        node.run_by("now")
        upgrade.play()
    upgrade.finalize()
    for node in (upgrade.a, upgrade.b):
        upgrade.lead(node)
        upgrade.play()
    third = MixedNode(tmp_path, "c", upgrade.url)
    upgrade.b.run_by("before")
    upgrade.wait_for(upgrade.b, "halted")
    third.run_by("before")
    upgrade.wait_for(third, "halted")
    status = tidewheel("cluster", "status", "--http", third.http).stdout
    said = f"finalized version is {NEWER}, and this program supports up to {SUPPORTED}: install"
    assert said in status, status
    upgrade.traffic.go_on(upgrade.a)
    upgrade.read()
    assert third.stop() == 0
    upgrade.b.run_by("now")
    upgrade.wait_for(upgrade.b, "following")
    upgrade.lead(upgrade.b)
    upgrade.play()
    upgrade.finish()


def test_a_hold_is_refused_until_all_nodes_can_read_it_and_their_version_is_finalized(
    tmp_path: Path, database: str, eventually: Callable[..., None]
) -> None:
    """The nodes of before support version 3, which knows no holds; the cluster is made by one of them."""
    url = f"{database}&log={tmp_path.name}"
    words = ("cluster", "create", url, "--segment-bytes", str(SEGMENT_BYTES))
    older = os.environ | {"SUPPORTED_VERSION": str(OLDEST)}
    program = [sys.executable, "-m", "tests.endurance.node_of_version"]
    subprocess.run([*program, *words], check=True, env=older)
    a, b = (SmallNode(tmp_path, name, url) for name in "ab")
    a.environment = older | {"CHECKPOINT_RECORDS": CHECKPOINT_RECORDS}
    b.environment = os.environ | {"CHECKPOINT_RECORDS": CHECKPOINT_RECORDS}
    try:
        b.start()
        eventually(lambda: b.role() == "leading")
        a.start()
        eventually(lambda: a.role() == "following" and b.view()["copies"].keys() == {"a", "b"})
        assert tidewheel("topic", "create", "t", "--http", b.http).returncode == 0
        for change in (("hold", "t"), ("delete", "t"), ("alter", "t", "--retention", "1h")):
            refused = tidewheel("topic", *change, "--yes", "--http", b.http)
            assert (refused.returncode, "TW-183" in refused.stderr) == (4, True), refused
            assert "tidewheel cluster set-version" in refused.stderr
        assert a.stop() == 0
        a.environment = b.environment
        a.start()
        eventually(lambda: b.view()["copies"]["a"]["supports"] == SUPPORTED)
        assert tidewheel("cluster", "set-version", "--http", b.http).stderr.startswith(f"Version {SUPPORTED}")
        eventually(lambda: a.role() == "following")
        assert tidewheel("cluster", "move", "a", "--http", b.http).returncode == 0
        eventually(lambda: a.role() == "leading")
        held = tidewheel("topic", "hold", "t", "--yes", "--http", a.http)
        assert held.returncode == 0, held
        assert a.stop() == 0
        a.environment = older
        a.start()
        eventually(lambda: a.role() == "halted")
        assert f"this program supports up to {OLDEST}" in str(a.view()), a.view()
    finally:
        for node in (a, b):
            if node.process is not None and node.process.poll() is None:
                node.kill()
