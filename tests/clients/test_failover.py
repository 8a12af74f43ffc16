"""A leader killed under the official clients, twice: what they were told is there, no send fails for good.

Each client gets the addresses of both nodes (`host:port;host:port`) and sends plain, FIFO, delayed and
transactional messages, one after the other of each kind, while others of its own receive them. What raises is
called again, as a caller with a deadline does. Then the other node leads, the first comes back, and the other
is killed: so each address is once the dead one. A client that takes one address gets the follower's; when
that node has become the leader it is killed and started again at once.

Prints JSON: sends, how often a call raised, the slowest send of each kind, what came twice (a call again is
another message to a broker: its id is another).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest

from tests.clients.libraries import LIBRARIES, PYTHON, require, spare_make_test
from tests.clients.official import OfficialClient, Refused
from tests.clients.plays_filters import Pair, outlive
from tests.clients.process_client import ProcessClient
from tests.clients.python_client import PythonClient
from tests.command import tidewheel
from tests.endurance.conftest import BrokerProcess
from tests.postgresql import running_postgresql

CALLER_SECONDS: Final = 30.0
"""How long a caller goes on with one message."""
LEAD_SECONDS, ARRIVE_SECONDS = 20.0, 60.0
LEASE_SECONDS, ACK_TRIES = 10, 3
DELAY_SECONDS: Final = 2
ENOUGH: Final = 10
"""How many sends of each kind come before a kill, and behind it."""
HELD: Final = 5
ONE_ADDRESS: Final = ("node", "rust")
"""Whose libraries take no list of addresses: 1.0.8 makes one name of it, rocketmq 5.0.0 one URI."""
KINDS: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")


class Node(BrokerProcess):
    """A node of a cluster, as a process."""

    def __init__(self, folder: Path, name: str, cluster: str) -> None:
        super().__init__(folder / name, "--cluster", cluster, "--node", name)

    def leads(self) -> bool:
        """Whether it says so."""
        with suppress(OSError), urlopen(f"http://{self.http}/api/cluster", timeout=2) as answer:
            return bool(json.load(answer)["role"] == "leading")
        return False


SPENT = "ends a half once"
"""What the library of Rust says of a half whose end it was to send before."""


class Sender(Thread):
    """Sends messages of one kind to a topic of that kind, one after the other, until it is over."""

    def __init__(self, client: OfficialClient, kind: str) -> None:
        super().__init__(name=kind, daemon=True)
        self.client, self.kind = client, kind
        self.over = Event()
        self.acknowledged: list[str] = []
        self.rolled_back: list[str] = []
        self.slowest, self.raised = 0.0, Counter[str]()
        self.failed: list[str] = []
        self.due_s: dict[str, int] = {}

    def run(self) -> None:
        """Send until it is over, or a send has failed for good."""
        while not self.over.is_set() and not self.failed:
            number = len(self.acknowledged) + len(self.rolled_back)
            body = f"{self.kind} {number}"
            began = time.monotonic()
            if self.kind == "TRANSACTION":
                self.transact(body, "rollback" if number % 3 == 2 else "commit")
            else:
                self.until_told(lambda body=body: self.send(body))  # type: ignore[misc]
                self.acknowledged.append(body)
            self.slowest = max(self.slowest, time.monotonic() - began)
            time.sleep(0.02)

    def send(self, body: str) -> None:
        """Send one message."""
        attributes: dict[str, Any] = {}
        if self.kind == "FIFO":
            attributes["message_group"] = "line"
        elif self.kind == "DELAY":
            attributes["deliver_at_s"] = due_s = int(time.time()) + DELAY_SECONDS
            self.due_s.setdefault(body, due_s)
        self.client.send(self.kind, body, **attributes)

    def transact(self, body: str, how: str) -> None:
        """Send a half and end it."""
        self.begin(body, how)
        self.end(body, how)

    def begin(self, body: str, how: str) -> None:
        """Send a half; one that was sent and not told is asked about, and ends as this one does."""
        self.client.answer_checks(body, how)
        self.until_told(lambda: self.client.send_half(self.kind, body))

    def end(self, body: str, how: str) -> None:
        """End a half; one whose library ends it once, and was refused, is asked about and ends so."""
        self.until_told(lambda: self.end_unless_spent(body, how))
        (self.acknowledged if how == "commit" else self.rolled_back).append(body)

    def end_unless_spent(self, body: str, how: str) -> None:
        """End a half, unless the library has let go of it."""
        try:
            self.client.end_half(body, how)
        except Refused as refusal:
            if SPENT not in str(refusal):
                raise

    def until_told(self, call: Callable[[], None]) -> None:
        """Call until the call returns, or the caller's time is over."""
        ends = time.monotonic() + CALLER_SECONDS
        while True:
            try:
                return call()
            except Refused as refusal:
                self.raised[reason_of(refusal)] += 1
                if time.monotonic() > ends:
                    self.failed.append(str(refusal))
                    return None
                time.sleep(0.1)


class Receiver(Thread):
    """Receives and acknowledges what comes to a topic, until it is over."""

    def __init__(self, client: OfficialClient, kind: str) -> None:
        super().__init__(name=f"receiver of {kind}", daemon=True)
        self.consumer = client.simple(kind, f"group of {kind}".replace(" ", "-"), await_seconds=1)
        self.over = Event()
        self.got: list[str] = []
        self.raised = Counter[str]()
        self.first_s: dict[str, float] = {}

    def run(self) -> None:
        """Receive until it is over; what raises is called again."""
        while not self.over.is_set():
            try:
                for one in self.consumer.receive(16, LEASE_SECONDS):
                    self.got.append(one.body)
                    self.first_s.setdefault(one.body, time.time())
                    self._ack(one)
            except Refused:
                time.sleep(0.1)

    def _ack(self, one: Any) -> None:
        """Acknowledge; what cannot be, since its lease was forgotten with the leader, comes again."""
        for _ in range(ACK_TRIES):
            try:
                return self.consumer.ack(one)
            except Refused as refusal:
                self.raised[reason_of(refusal)] += 1
            time.sleep(0.1)
        return None


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with running_postgresql(syncs=True) as url:
        yield url.replace("postgresql+psycopg", "postgresql")


@pytest.fixture
def nodes(tmp_path: Path, database: str, request: pytest.FixtureRequest) -> Iterator[list[Node]]:
    log = request.node.callspec.id.replace("-", "_")
    url = f"{database}&log={log}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", 8 << 20).returncode == 0
    both = [Node(tmp_path, name, url) for name in "ab"]
    for node in both:  # at each second start the Python client is told addresses in another text
        node.start()
        assert node.stop() == 0, node.log()[-3_000:]
        node.start()
    leader = leader_of(both)
    for kind in KINDS:
        body = json.dumps({"name": kind, "message_type": kind}).encode()
        asked = Request(f"http://{leader.http}/api/topics", body, {"Content-Type": "application/json"})
        urlopen(asked).close()
    yield both
    codes = [node.stop() for node in both]
    for node in both:
        assert "Traceback" not in node.log(), node.log()[-5_000:]
    assert codes == [0, 0]


@pytest.fixture(params=["python", *LIBRARIES])
def client(request: pytest.FixtureRequest, tmp_path: Path, nodes: list[Node]) -> Iterator[OfficialClient]:
    started: PythonClient | ProcessClient
    addresses = ";".join(node.listen for node in nodes)
    if request.param in ONE_ADDRESS:
        addresses = next(node.listen for node in nodes if not node.leads())
    if request.param == "python":
        started = PythonClient(addresses)
    else:
        library = LIBRARIES[request.param]
        require(library)
        started = ProcessClient(library, addresses, {**os.environ, "HOME": str(tmp_path)})
    yield started
    started.close()
    started.stop()


class Leading:
    """Whichever node leads, to be asked over HTTP."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    @property
    def http(self) -> str:
        """Where it listens."""
        return str(leader_of(self._nodes).http)


@pytest.mark.parametrize("how", ["killed", "moved"])
@pytest.mark.parametrize("name", ["python", *LIBRARIES])
def test_the_next_leader_knows_the_filters_of_a_group(
    nodes: list[Node], name: str, how: str, tmp_path: Path
) -> None:
    if how == "moved":
        spare_make_test()
    library = PYTHON if name == "python" else LIBRARIES[name]
    require(library)
    leader = leader_of(nodes)
    other = next(node for node in nodes if node is not leader)
    addresses = other.listen if name in ONE_ADDRESS else ";".join(node.listen for node in nodes)

    def take_over() -> None:
        if how == "killed":
            leader.kill()
        else:
            assert tidewheel("cluster", "move", "--http", leader.http).returncode == 0
        assert leader_of([other]) is other

    pair = Pair(
        lambda: ProcessClient(library, addresses, {**os.environ, "HOME": str(tmp_path)}), Leading(nodes)
    )
    try:
        print(json.dumps({"client": name, "row": f"leader {how}"} | outlive(pair, take_over)))
    finally:
        pair.close()
        for client in pair.clients:
            client.stop()
        if how == "killed":
            leader.start()


def reason_of(refusal: Refused) -> str:
    """What a call raised: the broker's number if it was the broker, else how it begins."""
    found = re.search(r"TW-\d+", str(refusal))
    return found[0] if found else str(refusal)[:60]


def leader_of(nodes: list[Node]) -> Node:
    """The node that leads, once one does."""
    ends = time.monotonic() + LEAD_SECONDS
    while not (leading := [node for node in nodes if node.leads()]):
        assert time.monotonic() < ends, "\n".join(node.log()[-3_000:] for node in nodes)
        time.sleep(0.05)
    return leading[0]


def state_of(nodes: list[Node]) -> str:
    """What the leader has of each topic, and what it waits for; what the nodes have said last."""
    with urlopen(f"http://{leader_of(nodes).http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    wanted = ("rocketmq_consumer_lag_messages", "rocketmq_timing", "mq_timer_next", "mq_timer_pending")
    shown = [line for line in lines if line.startswith(wanted)]
    return "\n".join([*shown, *(node.log()[-3_000:] for node in nodes)])


def await_more(senders: list[Sender]) -> None:
    """Return when enough more sends of each kind were acknowledged."""
    before = {sender: len(sender.acknowledged) for sender in senders}
    ends = time.monotonic() + 2 * CALLER_SECONDS
    while any(len(sender.acknowledged) < before[sender] + ENOUGH for sender in senders):
        failed = {sender.kind: sender.failed for sender in senders if sender.failed}
        assert not failed, f"a send failed for good: {failed}"
        assert time.monotonic() < ends, [dict(sender.raised) for sender in senders]
        time.sleep(0.05)


def test_no_send_fails_for_good_and_all_that_was_told_arrives(
    nodes: list[Node], client: OfficialClient
) -> None:
    senders = [Sender(client, kind) for kind in KINDS]
    receivers = [Receiver(client, kind) for kind in KINDS]
    holder = Sender(client, "TRANSACTION")
    began_s = time.time()
    for thread in (*receivers, *senders):
        thread.start()
    for number in range(2):
        held = [f"held {number} {one}" for one in range(HELD)]
        for body in held:
            holder.begin(body, "commit")
        await_more(senders)
        killed = leader_of(nodes)
        killed.kill()
        is_dialled = client.name in ONE_ADDRESS and number == 1
        if is_dialled:
            killed.start()
        await_more(senders)
        for body in held:
            holder.end(body, "commit")
        if not is_dialled:
            killed.start()
    for sender in senders:
        sender.over.set()
        sender.join()
    judge(nodes, client, [*senders, holder], receivers, began_s)


def judge(
    nodes: list[Node],
    client: OfficialClient,
    senders: list[Sender],
    receivers: list[Receiver],
    began_s: float,
) -> None:
    """Wait until all that was told has come, and hold it against what was sent."""
    told = {body for sender in senders for body in sender.acknowledged}
    ends = time.monotonic() + ARRIVE_SECONDS
    while missing := told - {body for one in receivers for body in one.got}:
        assert time.monotonic() < ends, f"{sorted(missing)} told and not received; {state_of(nodes)}"
        time.sleep(0.1)
    for receiver in receivers:
        receiver.over.set()
    for receiver in receivers:
        receiver.join()
    came = Counter(body for one in receivers for body in one.got)
    shown = {
        "client": client.name,
        "seconds": round(time.time() - began_s, 1),
        "sends": {one.kind: len(one.acknowledged) + len(one.rolled_back) for one in senders[:-1]},
        "slowest_seconds": {one.kind: round(one.slowest, 2) for one in senders[:-1]},
        "raised": {one.kind: dict(one.raised) for one in senders if one.raised},
        "acks_raised": {one.name: dict(one.raised) for one in receivers if one.raised},
        "twice": sum(count > 1 for count in came.values()),
    }
    print(json.dumps(shown, indent=1))
    assert not [one.failed for one in senders if one.failed]
    assert not came.keys() & {body for one in senders for body in one.rolled_back}
    first_s = receivers[KINDS.index("DELAY")].first_s
    due_s = senders[KINDS.index("DELAY")].due_s
    assert not [body for body, seen_s in first_s.items() if seen_s < due_s[body]], "early"
    in_line = list(dict.fromkeys(receivers[KINDS.index("FIFO")].got))
    assert in_line == sorted(in_line, key=lambda body: int(body.split()[1]))
