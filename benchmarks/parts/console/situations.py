"""A broker in the situations of the operator tasks, with clients, an audit and unrelated topics.

Everything is two hours old or less: the clock of the broker is virtual, and is advanced between the steps.
Groups, dead letters and timers are set over HTTP, transactions and a refused client by the official Python
client. Anything that a task changes exists twice: for the console and for the command line.

    late order     order:1042 is delivered, and its group is paused, after other messages of its queue
    lagging group  mailer has no consumer, and the largest lag of all groups
    halves         their producer has ended; one for each way
    dead letters   of a bad release, with KeyError, and others of the group that must stay
    campaign       timers of a topic, due within the hour
    burst          timers set by a faulty release, between others of their topic
    refused        a client with a wrong secret
    old topic      all of its messages are acknowledged
    audit          a separate shop, audited by Spark
    cancelled      alice cancelled the timer of order:7
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parts.serving import ROOT, serving

TOPICS: Final = 20
AROUND: Final = 10_000
CAMPAIGN: Final = 300
BURST: Final = 500
BAD, RIGHT = 40, 5
CONSOLE: Final = {
    "half": "order:2001",
    "dead": "invoices",
    "campaign": "spring-sale",
    "burst": "reminders",
    "old": "winter-sale",
}
COMMANDS: Final = {
    "half": "order:2002",
    "dead": "labels",
    "campaign": "autumn-sale",
    "burst": "offers",
    "old": "summer-sale",
}
WAYS: Final = (CONSOLE, COMMANDS)

CLIENT: Final = """
import os, sys, time
from rocketmq import ClientConfiguration, Credentials, Message, Producer, TransactionChecker

class Silent(TransactionChecker):
    def check(self, message):
        raise NotImplementedError

endpoint, name, secret, *keys = sys.argv[1:]
checker = {"checker": Silent()} if keys else {}
producer = Producer(ClientConfiguration(endpoint, Credentials(name, secret)), ["payments"], **checker)
try:
    producer.startup()
    for key in keys:
        message = Message()
        message.topic, message.keys, message.body = "payments", key, b"paid"
        producer.send(message, producer.begin_transaction())
    message = Message()
    message.topic, message.body = "payments", b"paid"
    keys or producer.send(message)
except Exception:  # it is refused
    pass
os._exit(0)
"""


@dataclass
class Broker:
    """A broker's HTTP interface and folder; `token` is an administrator's."""

    http: str
    listen: str
    folder: Path
    token: str

    def call(self, method: str, path: str, body: object = None, token: str = "") -> Any:
        """Return the answer to a call."""
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.http}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def get(self, path: str) -> Any:
        """Return the answer to a GET."""
        return self.call("GET", path)

    def post(self, path: str, body: object, token: str = "") -> Any:
        """Return the answer to a POST."""
        return self.call("POST", path, body, token)

    def type(self, *words: str) -> Any:
        """Run a command as the administrator; return its JSON."""
        command = [sys.executable, "-m", "services.cli.main", *words, "--json"]
        environment = os.environ | self.environment | {"PYTHONPATH": str(ROOT)}
        return json.loads(subprocess.check_output(command, env=environment, stderr=subprocess.DEVNULL))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of an administrator's shell."""
        return {"TIDEWHEEL_HTTP": self.http, "TIDEWHEEL_HTTP_TOKEN": str(self.folder / "http.token")}


@contextmanager
def situations(folder: Path, audits: Path | None) -> Iterator[tuple[Broker, dict[str, str]]]:
    """Run a broker in all situations; yield it, and the values of the tasks.

    `audits` is a folder with runs of an audit; None runs a shop and its audit.
    """
    (folder / "audit-out").symlink_to(audits or audited(folder))
    token_file = folder / "http.token"
    options = ("--clock", "virtual", "--auth", "--http-token", str(token_file))
    with serving(folder / "store", *options) as facts:
        broker = Broker(facts["http"], facts["listen"], folder, token_file.read_text().strip())
        yield broker, {"folder": str(folder), "order": "order:1042", "cancelled": "order:7"} | fill(broker)


def audited(folder: Path) -> Path:
    """Run a shop and its audit; return the folder of its runs."""
    out = folder / "demo"
    command = [sys.executable, "-m", "services.cli.main", "demo"]
    command += ["--count", "40", "--timeout", "2", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=folder, env=environment, stdout=quiet, stderr=quiet, check=True)
    return out / "audit"


def fill(broker: Broker) -> dict[str, str]:
    """Set up all situations; return the ids of the transactions by key."""
    secret, alice = add_users(broker)
    fill_around(broker)
    receive(broker, "mailer", "mails")
    send(broker, "mails", 900)
    pass_time(broker, "20m")
    receive(broker, "closer", "deadlines")
    broker.post("/api/groups/closer/pause", {})
    send(broker, "deadlines", 40)
    delay(broker, "deadlines", [timer("order:1042", "5m"), timer("order:7", "2h")])
    pass_time(broker, "6m")
    run_client(broker, secret, [way["half"] for way in WAYS])
    for way in WAYS:
        give_up(broker, way["dead"])
        delay(broker, way["campaign"], [timer(f"sale:{one}", "55m") for one in range(CAMPAIGN)])
        faulty = [timer(f"burst:{one}", "58m") | {"tag": "release-412"} for one in range(BURST)]
        delay(broker, way["burst"], faulty + [timer(f"due:{one}", "57m") for one in range(BURST)])
        receive(broker, "archive", way["old"])
        send(broker, way["old"], 20)
        finish(broker, "archive", way["old"])
    order = {"topic": "deadlines", "key": "order:7", "reason": "paid by phone"}
    broker.post("/api/timers/cancel", order, alice)
    run_client(broker, "an-old-secret", [])
    pass_time(broker, "12m")
    found = broker.get("/api/transactions?limit=50")["transactions"]
    return {one["keys"][0]: one["transaction_id"] for one in found}


def add_users(broker: Broker) -> tuple[str, str]:
    """Add the users shop and alice (an administrator); return the secret of shop, the token of alice."""
    secret: str = broker.type("auth", "user", "add", "shop")["secret"]
    broker.type("auth", "acl", "allow", "shop", "send", "receive", "transact", "--topic", "*", "--group", "*")
    broker.type("auth", "user", "add", "alice")
    broker.type("auth", "role", "alice", "admin")
    token: str = broker.type("auth", "token", "add", "alice")["token"]
    return secret, token


def fill_around(broker: Broker) -> None:
    """Set topics, timers and a schedule that no task uses."""
    for number in range(TOPICS):
        broker.post("/api/topics", {"name": f"shop-{number}", "queue_count": 4})
        many = [timer(f"order:{number}-{one}", f"{3 + one % 90}h") for one in range(AROUND // TOPICS)]
        delay(broker, f"shop-{number}", many)
    broker.post("/api/topics", {"name": "payments"})
    schedule = {"topic": "shop-1", "body": "x", "cron": "0 9 * * *", "time_zone": "Europe/London"}
    broker.call("PUT", "/api/schedules/daily", schedule)


def timer(key: str, after: str) -> dict[str, Any]:
    """Return a delayed message without its topic."""
    return {"body": key, "in": after, "timer_key": key, "keys": [key]}


def delay(broker: Broker, topic: str, timers: Sequence[dict[str, Any]]) -> None:
    """Send delayed messages."""
    broker.post("/api/timers", {"timers": [one | {"topic": topic} for one in timers]})


def send(broker: Broker, topic: str, count: int) -> None:
    """Send messages."""
    rows = [{"topic": topic, "body": f"message {one}", "keys": [f"{topic}:{one}"]} for one in range(count)]
    broker.post("/api/messages", {"messages": rows})


def receive(broker: Broker, group: str, topic: str) -> list[dict[str, Any]]:
    """Receive messages; the first call creates the group."""
    found: list[dict[str, Any]] = broker.post(f"/api/groups/{group}/receive", {"topic": topic, "count": 32})[
        "messages"
    ]
    return found


def finish(broker: Broker, group: str, topic: str) -> None:
    """Receive and acknowledge all messages of a topic."""
    while found := receive(broker, group, topic):
        broker.post(f"/api/groups/{group}/ack", {"receipt_handles": [one["receipt_handle"] for one in found]})


def give_up(broker: Broker, group: str) -> None:
    """Move messages of a group to dead letters, most of them because of a bad release."""
    receive(broker, group, f"{group}-in")
    for count, reason in ((BAD, "KeyError: 'currency'"), (RIGHT, "order was withdrawn")):
        send(broker, f"{group}-in", count)
        while found := receive(broker, group, f"{group}-in"):
            handles = [one["receipt_handle"] for one in found]
            refusal = {"receipt_handles": handles, "dead_letter": True, "reason": reason}
            broker.post(f"/api/groups/{group}/nack", refusal)


def run_client(broker: Broker, secret: str, keys: Sequence[str]) -> None:
    """Begin transactions with the official client, or send a message; the client exits without cleanup."""
    command = [sys.executable, "-c", CLIENT, broker.listen, "shop", secret, *keys]
    environment = os.environ | {"HOME": str(broker.folder)}
    subprocess.run(command, cwd=broker.folder, env=environment, stdout=subprocess.DEVNULL, check=True)


def pass_time(broker: Broker, span: str) -> None:
    """Advance the clock of the broker."""
    broker.post("/api/clock/advance", {"by": span})
