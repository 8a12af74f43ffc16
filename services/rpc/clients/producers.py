"""Selection of producers for transaction check-backs. The producers of a topic are used in turn.

A producer of a topic is a client that declared the topic, sent to it, or requests its route as a producer.
The Python client does not declare topics that were not passed to its constructor (reference/wire-protocol.md
4.8), and a client that waits for its transactions sends nothing, but refreshes its routes every 30 s. After a
check-back, the producer is moved to the end of the queue, so that an unresponsive producer does not block the
others.

Disconnected producers are removed periodically, after as many additions as there are entries. There are at
most `PLACES_MAX` entries, and at most `PLACES_PER_ADDRESS_MAX` for the clients of one address, so that one
caller leaves half of them to others. A producer without an entry gets one when it sends again. A client has
at most `PLACES_PER_CLIENT_MAX` entries. A further topic replaces its oldest entry.

A check-back includes the message, which is read only if the producer's stream has room for it. When a
producer becomes available (it connects, has read its pending commands, or gets new rights), the core is
notified if half messages of its topics wait for a producer (`txn.checkback`). A producer that may not end the
transactions of a topic gets no check-backs for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from services.broker.spine.values import CheckBackRequest
from services.live.clients.check_back_polls import Read
from services.live.transactions import ProducerView
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.generated.service_pb2 import RecoverOrphanedTransactionCommand, TelemetryCommand
from services.rpc.wire.messages import half_to_wire

log = structlog.get_logger()

PLACES_MAX = 100_000
PLACES_PER_ADDRESS_MAX = PLACES_MAX // 2
PLACES_PER_CLIENT_MAX = 1_024
CHECKED_PLACES_MIN = 1_000
"""The minimum number of additions between two removals of disconnected producers."""

MayEnd = Callable[[str, str], bool]
"""Returns whether a user may end the transactions of a topic (stored name)."""


def allow_all(user: str, topic: str) -> bool:
    """Allow every user to end every transaction, for a broker without access control."""
    return True


@dataclass(slots=True)
class Places:
    """The topics of a producer, oldest first. `host` is its address at the time of the first entry."""

    host: str
    topics: dict[str, None] = field(default_factory=dict)


class Halves(Protocol):
    """The part of the broker that has half messages waiting for a producer."""

    def topics_awaiting_producers(self) -> list[str]:
        """Topics (stored names) with half messages that wait for an available producer."""

    def send_check_backs(self, topic: str) -> None:
        """Send check-backs for a topic."""


class Producers:
    """The producers of each topic, in the order in which they are used."""

    def __init__(self, sessions: Sessions, may_end: MayEnd = allow_all) -> None:
        self._sessions, self._may_end = sessions, may_end
        self._lines: dict[str, dict[str, str]] = {}
        self._of_client: dict[str, Places] = {}
        self._of_address: Counter[str] = Counter()
        self._places = 0
        self._until_look = CHECKED_PLACES_MIN
        self._halves: Halves | None = None

    def tell(self, halves: Halves) -> None:
        """Set the object that is notified of available producers."""
        self._halves = halves

    def can_be_asked(self, session: Session) -> None:
        """Notify the core that a client is available for check-backs."""
        for topic in self._halves.topics_awaiting_producers() if self._halves else ():
            if session.client_id in self._lines.get(topic, ()):
                self._tell_of(topic, session.client_id)

    def all_can_be_asked(self) -> None:
        """Notify the core of all available producers after a change of rights."""
        for topic in self._halves.topics_awaiting_producers() if self._halves else ():
            for client_id in self._lines.get(topic, ()):
                self._tell_of(topic, client_id)

    def add(self, topic: str, client_id: str, namespace: str) -> None:
        """Add a client as a producer of a topic (stored name)."""
        line = self._lines.get(topic)
        if line is not None and client_id in line:
            return
        self._until_look -= 1
        if self._until_look <= 0:
            self._forget_gone()
        if self._take_place(topic, client_id):
            self._lines.setdefault(topic, {})[client_id] = namespace
            self._tell_of(topic, client_id)

    def views(self, topic: str = "") -> list[ProducerView]:
        """Return the producers of one topic or of all topics, in the order in which they are used."""
        lines = self._lines if not topic else {topic: self._lines.get(topic, {})}
        return [
            ProducerView(name, client_id, self._can_be_asked(name, client_id))
            for name, line in sorted(lines.items())
            for client_id in line
        ]

    def ask(self, question: CheckBackRequest, read: Read) -> str:
        """Send a check-back to the next available producer.

        Returns its client id, or an empty string if there is none.
        """
        line = self._lines.get(question.topic, {})
        for client_id, namespace in list(line.items()):
            if self._sessions.find(client_id) is None:
                self._leave_place(question.topic, client_id)
                continue
            del line[client_id]
            line[client_id] = namespace
            if self._write(client_id, namespace, question, read):
                log.info("asked", topic=question.topic, transaction=question.transaction_id)
                return client_id
        return ""

    def _forget_gone(self) -> None:
        for client_id, places in list(self._of_client.items()):
            if self._sessions.find(client_id) is None:
                for topic in list(places.topics):
                    self._leave_place(topic, client_id)
        self._until_look = max(CHECKED_PLACES_MIN, self._places)

    def _take_place(self, topic: str, client_id: str) -> bool:
        """Add an entry for a topic. Returns False if the limit is reached."""
        places = self._of_client.get(client_id)
        if places is not None and len(places.topics) >= PLACES_PER_CLIENT_MAX:
            self._leave_place(next(iter(places.topics)), client_id)
        session = self._sessions.find(client_id)
        host = places.host if places is not None else session.host if session is not None else ""
        if self._places >= PLACES_MAX or self._of_address[host] >= PLACES_PER_ADDRESS_MAX:
            return False
        self._of_client.setdefault(client_id, Places(host)).topics[topic] = None
        self._of_address[host] += 1
        self._places += 1
        return True

    def _leave_place(self, topic: str, client_id: str) -> None:
        places = self._of_client[client_id]
        del places.topics[topic]
        if not places.topics:
            del self._of_client[client_id]
        self._of_address[places.host] -= 1
        if not self._of_address[places.host]:
            del self._of_address[places.host]
        self._places -= 1
        del self._lines[topic][client_id]
        if not self._lines[topic]:
            del self._lines[topic]

    def _can_be_asked(self, topic: str, client_id: str) -> bool:
        session = self._sessions.find(client_id)
        return session is not None and bool(session.streams) and self._may_end(session.user, topic)

    def _tell_of(self, topic: str, client_id: str) -> None:
        if self._halves is not None and self._can_be_asked(topic, client_id):
            self._halves.send_check_backs(topic)

    def _write(self, client_id: str, namespace: str, question: CheckBackRequest, read: Read) -> bool:
        session = self._sessions.find(client_id)
        if session is None or not self._can_be_asked(question.topic, client_id):
            return False
        if not session.streams[-1].may_write():
            return False
        message = read()
        if message is None:
            return False
        command = RecoverOrphanedTransactionCommand(
            message=half_to_wire(message, namespace), transaction_id=question.transaction_id
        )
        return session.streams[-1].write(TelemetryCommand(recover_orphaned_transaction_command=command))
