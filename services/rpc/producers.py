"""Whom to ask how a transaction ended: the producers of its topic, one after the other.

A producer of a topic is a client that declared it **or** sent to it: the Python client declares nothing for
topics it was not built with (reference/wire-protocol.md 4.8). Who is asked goes to the end of the line, so
a producer that cannot answer does not keep the others from being asked next time.

Whoever is gone is forgotten in time: for as many that come as there are places in lines, one look at all.
There are `PLACES_MAX` in all; who finds none gets one when it sends again.

A question shows the message. Whoever may not end the topic's transactions is not asked, whatever it declares.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from services.broker.values import CheckBack
from services.live.transactions import ProducerView
from services.rpc.generated.service_pb2 import RecoverOrphanedTransactionCommand, TelemetryCommand
from services.rpc.messages import half_to_wire
from services.rpc.sessions import Sessions

log = structlog.get_logger()

PLACES_MAX = 100_000
LOOK_EACH_MIN = 1_000
"""How many come at least before those who are gone are looked for."""

MayEnd = Callable[[str, str], bool]
"""Whether a user may end the transactions of a topic (stored name)."""


def anybody(user: str, topic: str) -> bool:
    """Let everybody end every transaction: what a broker does that asks nobody who it is."""
    return True


class Producers:
    """Who produces to which topic, in the order in which they are to be asked."""

    def __init__(self, sessions: Sessions, may_end: MayEnd = anybody) -> None:
        self._sessions, self._may_end = sessions, may_end
        self._lines: dict[str, dict[str, str]] = {}
        self._places = 0
        self._until_look = LOOK_EACH_MIN

    def add(self, topic: str, client_id: str, namespace: str) -> None:
        """Remember that a client produces to a topic (stored name)."""
        line = self._lines.get(topic)
        if line is not None and client_id in line:
            return
        self._until_look -= 1
        if self._until_look <= 0:
            self._forget_gone()
        if self._places < PLACES_MAX:
            self._lines.setdefault(topic, {})[client_id] = namespace
            self._places += 1

    def views(self, topic: str = "") -> list[ProducerView]:
        """Return the producers of a topic, or of all, in the order in which they are asked."""
        lines = self._lines if not topic else {topic: self._lines.get(topic, {})}
        return [
            ProducerView(name, client_id, self._can_be_asked(name, client_id))
            for name, line in sorted(lines.items())
            for client_id in line
        ]

    def ask(self, question: CheckBack) -> str:
        """Ask the next producer that can be reached; returns its id, empty when there is none."""
        line = self._lines.get(question.message.topic, {})
        for client_id, namespace in list(line.items()):
            del line[client_id]
            if self._sessions.find(client_id) is None:
                self._places -= 1
                continue
            line[client_id] = namespace
            if self._write(client_id, namespace, question):
                log.info("asked", topic=question.message.topic, transaction=question.transaction_id)
                return client_id
        return ""

    def _forget_gone(self) -> None:
        for topic, line in list(self._lines.items()):
            for client_id in [one for one in line if self._sessions.find(one) is None]:
                del line[client_id]
            if not line:
                del self._lines[topic]
        self._places = sum(len(line) for line in self._lines.values())
        self._until_look = max(LOOK_EACH_MIN, self._places)

    def _can_be_asked(self, topic: str, client_id: str) -> bool:
        session = self._sessions.find(client_id)
        return session is not None and bool(session.streams) and self._may_end(session.user, topic)

    def _write(self, client_id: str, namespace: str, question: CheckBack) -> bool:
        session = self._sessions.find(client_id)
        if session is None or not self._can_be_asked(question.message.topic, client_id):
            return False
        command = RecoverOrphanedTransactionCommand(
            message=half_to_wire(question.message, namespace), transaction_id=question.transaction_id
        )
        return session.streams[-1].write(TelemetryCommand(recover_orphaned_transaction_command=command))
