"""A mixed load of one language on topics of its own: what is sent is received and acknowledged.

Of ten messages seven are plain, two are due some seconds later, one is a half that is committed. Each bears
its number and a time, by which its receiver knows what is missing, twice or early, and how long it took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Event, Lock, Thread
from typing import Any

from tests.clients.official import Got, Refused
from tests.clients.process_client import ProcessClient

BODY_CHARACTERS = 256
KINDS = ("plain", "plain", "delay", "plain", "plain", "plain", "half", "plain", "delay", "plain")
TYPES = {"plain": "NORMAL", "delay": "DELAY", "half": "TRANSACTION"}
SENDERS = 3
DELAY_SECONDS = 3
RECEIVED_MAX = 32
LEASE_SECONDS = 60
AWAIT_SECONDS = 5


@dataclass(slots=True)
class Tally:
    """What happened in a phase; times in milliseconds."""

    sent: int = 0
    received: int = 0
    twice: int = 0
    early: int = 0
    errors: list[str] = field(default_factory=list)
    send_ms: list[float] = field(default_factory=list)
    arrive_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)


class Lane:
    """One language's process, its senders and its receivers."""

    def __init__(self, client: ProcessClient, create_topic: Callable[[str, str], Any]) -> None:
        self.name = client.name
        self.tally = Tally()
        self.pause_seconds = 0.0
        self._client, self._stopped, self._lock = client, Event(), Lock()
        self._resting = Event()
        self._numbers = count()
        self._open: set[int] = set()
        for kind, message_type in TYPES.items():
            create_topic(self._topic(kind), message_type)
        receivers = [Thread(target=self._receive, args=(kind,)) for kind in TYPES]
        self._threads = [*receivers, *(Thread(target=self._send_all) for _ in range(SENDERS))]
        for thread in self._threads:
            thread.start()

    @property
    def open_count(self) -> int:
        """How many messages were taken by the broker and have not come yet."""
        return len(self._open)

    def begin_phase(self) -> Tally:
        """Count anew; returns what was counted until now."""
        with self._lock:
            before, self.tally = self.tally, Tally()
        return before

    def slow_down(self, per_second: float) -> None:
        """Send so many messages a second from now on, all senders together; at least one."""
        self.pause_seconds = SENDERS / max(1.0, per_second)

    def rest(self) -> None:
        """Send no more; what is on its way still arrives."""
        self._resting.set()

    def stop(self) -> None:
        """End everything."""
        self._resting.set()
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._client.stop()

    def _topic(self, kind: str) -> str:
        return f"soak-{self.name}-{kind}"

    def _send_all(self) -> None:
        due = time.monotonic()
        while not self._resting.is_set():
            due = max(due + self.pause_seconds, time.monotonic() - 1)
            self._resting.wait(max(0.0, due - time.monotonic()))
            with self._lock:
                number = next(self._numbers)
                self._open.add(number)
            self._watched(partial(self._send, number, KINDS[number % len(KINDS)]))

    def _send(self, number: int, kind: str) -> None:
        due_s = int(time.time()) + DELAY_SECONDS if kind == "delay" else time.time()
        body = f"{number} {due_s:.6f} ".ljust(BODY_CHARACTERS, "x")
        began = time.perf_counter()
        if kind == "half":
            self._client.send_half(self._topic(kind), body)
            self._client.end_half(body, "commit")
        else:
            attributes = {"deliver_at_s": due_s} if kind == "delay" else {}
            self._client.send(self._topic(kind), body, **attributes)
            self.tally.send_ms.append((time.perf_counter() - began) * 1000)
        with self._lock:
            self.tally.sent += 1

    def _receive(self, kind: str) -> None:
        topic = self._topic(kind)
        consumer = self._client.simple(topic, f"group-of-{topic}", await_seconds=AWAIT_SECONDS)
        while not self._stopped.is_set():
            self._watched(lambda: self._receive_once(consumer, kind))

    def _receive_once(self, consumer: Any, kind: str) -> None:
        got = consumer.receive(RECEIVED_MAX, LEASE_SECONDS)
        now_s = time.time()
        acks = [self._acked(consumer, one) for one in got]
        for one in got:
            self._arrived(one.body, kind, now_s)
        for ack in acks:
            ack.result(LEASE_SECONDS)

    def _acked(self, consumer: Any, got: Got) -> Future[Any]:
        return self._client.begin("ack", consumer=consumer.number, native=got.native, handle=got.handle)

    def _arrived(self, body: str, kind: str, now_s: float) -> None:
        number, due_s = body.split()[:2]
        took_ms = (now_s - float(due_s)) * 1000
        with self._lock:
            tally = self.tally
            tally.received += 1
            tally.twice += int(number) not in self._open
            self._open.discard(int(number))
            tally.early += kind == "delay" and took_ms < 0
            (tally.late_ms if kind == "delay" else tally.arrive_ms).append(took_ms)

    def _watched(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (Refused, TimeoutError, RuntimeError) as error:
            self.tally.errors.append(repr(error))
            self._stopped.wait(0.5)
