"""The outbox relay, which sends the rows of committed transactions in order per key.

    with Relay(engine, Client()) as relay:
        relay.run(stop)          # until the event `stop` is set

Rows of a key are sent one after the other, each after the previous row is acknowledged. Different keys are
sent concurrently by `senders` threads. The rules are described in `tidewheel.outbox`.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from tidewheel.barrier import wall_clock_ms
from tidewheel.barrier_table import refuse_unfit_table
from tidewheel.client.calls import send
from tidewheel.client.clients import AsyncClient, Client
from tidewheel.database_arguments import refuse_no_count, refuse_no_engine, sending_of
from tidewheel.databases import KNOWN, MYSQL
from tidewheel.errors import (
    ClientMistake,
    ConfigurationError,
    NotFound,
    RefusedByState,
    UnknownChoice,
)
from tidewheel.mysql_tables import refuse_lossy_charset, refuse_server_that_waits
from tidewheel.outbox_claims import RETRY_MS, RETRY_MS_MAX, LeasedRows, LockedRows, Sent
from tidewheel.outbox_table import REMEDY, message_of, new_message_of, outbox_table

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from rocketmq import Producer
    from sqlalchemy import Engine, Row

BATCH_ROWS = 100
SENDERS = 8
LEASE_MS = 60_000
IDLE_S = 0.2
ERROR_CHARACTERS = 500
PARK_AFTER = 10
"""Number of refusals, over about three minutes, after which a row is parked."""

log = logging.getLogger(__name__)


def elapsed_clock_ms() -> int:
    """Return elapsed milliseconds, unaffected by changes of the system time."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True)
class Round:
    """Result of one round: the number of rows that were sent, and the number of rows that failed."""

    sent: int
    failed: int


class Relay:
    """Sends the outbox of one database through a Client or a started official producer.

    A row that the broker has refused `park_after` times is parked. If `park_after` is None, the row is
    retried indefinitely.

    Raises:
        UnknownChoice: If the database is not supported or too old.
        ConfigurationError: If the outbox's table is missing or outdated, or the producer is an AsyncClient.
        ClientMistake: If a number of rows, senders, refusals or milliseconds is invalid.
    """

    def __init__(
        self,
        engine: Engine,
        producer: Client | Producer,
        *,
        batch: int = BATCH_ROWS,
        senders: int = SENDERS,
        lease_ms: int = LEASE_MS,
        park_after: int | None = PARK_AFTER,
        clock_ms: Callable[[], int] = wall_clock_ms,
        elapsed_ms: Callable[[], int] = elapsed_clock_ms,
    ) -> None:
        refuse_no_engine(engine)
        refuse_no_count(batch, "batch")
        refuse_no_count(senders, "senders")
        refuse_no_count(lease_ms, "lease_ms", least=0)
        if park_after is not None:
            refuse_no_count(park_after, "park_after")
        with engine.connect() as connection:
            refuse_unfit_table(connection, outbox_table, REMEDY)
            if engine.dialect.name in MYSQL:
                refuse_server_that_waits(connection)
                refuse_lossy_charset(connection)
        self._send, self._batch, self._clock_ms = send_by(producer), batch, clock_ms
        self._claims = claims_of(engine, lease_ms, elapsed_ms)
        self._park_after = park_after
        self._senders = ThreadPoolExecutor(senders, thread_name_prefix="outbox")

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the sender threads."""
        self._senders.shutdown()

    def run(self, stop: threading.Event) -> None:
        """Send rows until `stop` is set.

        If a whole round fails, for example because of a database error, it is retried.
        """
        while not stop.is_set():
            try:
                is_idle = self.run_once().sent == 0
            except Exception as error:  # the relay must survive database failures
                log.warning("The outbox cannot be read or marked now: %s", error)
                is_idle = True
            if is_idle:
                stop.wait(IDLE_S)

    def run_once(self) -> Round:
        """Claim a batch of rows, send it, and mark the rows."""
        with self._claims.claim(self._batch, self._clock_ms()) as (taken, sent):
            lease_ms = self._claims.lease_ms
            ends_s = None if lease_ms is None else time.monotonic() + lease_ms / 2_000
            for part in self._senders.map(lambda rows: self._send_in_order(rows, ends_s), by_key(taken)):
                sent.update(part)
        done = sum("sent_ms" in values for values in sent.values())
        return Round(done, len(sent) - done)

    def _send_in_order(self, rows: Sequence[Row[Any]], ends_s: float | None) -> Sent:
        """Send the rows of a key until a row fails or half of the lease time has elapsed."""
        sent: Sent = {}
        for row in rows:
            if ends_s is not None and time.monotonic() > ends_s:
                break
            try:
                self._send(row)
            # the official client raises bare Exceptions, gRPC errors and its own errors
            except Exception as error:
                sent[row.id] = self._failed(row, error)
                break
            sent[row.id] = {"sent_ms": self._clock_ms(), "last_error": None}
        return sent

    def _failed(self, row: Row[Any], error: Exception) -> dict[str, Any]:
        """Return the column values of an unsent row. The row is parked after `park_after` refusals."""
        now_ms, refusals = self._clock_ms(), row.refusals + is_refusal(error)
        marks = {"attempts": row.attempts + 1, "refusals": refusals, "last_error": words(error)}
        if self._park_after is not None and refusals >= self._park_after and is_refusal(error):
            log.error(
                "Message %s to %s is parked after %d refusals: %s. See tidewheel outbox ls.",
                row.outbox_id,
                row.topic,
                refusals,
                error,
            )
            return {**marks, "retry_ms": -now_ms}
        log.warning("Message %s to %s is not sent yet: %s", row.outbox_id, row.topic, error)
        pause_ms = min(RETRY_MS * 2 ** min(row.attempts, 10), RETRY_MS_MAX)
        return {**marks, "retry_ms": now_ms + pause_ms}


REFUSALS = (ClientMistake, NotFound, RefusedByState)
REFUSALS_OF_OFFICIAL_CLIENT = {
    "BadRequestException",
    "IllegalArgumentException",
    "NotFoundException",
    "PayloadEmptyException",
    "PayloadTooLargeException",
    "RequestHeaderFieldsTooLargeException",
    "UnsupportedException",
}


def is_refusal(error: Exception) -> bool:
    """Return whether the message itself was refused.

    Connection errors and missing permissions are not refusals.
    """
    return isinstance(error, REFUSALS) or type(error).__name__ in REFUSALS_OF_OFFICIAL_CLIENT


def words(error: Exception) -> str:
    """Return the error text to store in a row. NUL is replaced, because PostgreSQL does not accept it."""
    return (str(error) or repr(error))[:ERROR_CHARACTERS].replace("\0", "\ufffd")


def send_by(producer: Client | Producer) -> Callable[[Row[Any]], object]:
    """Return a function that sends a row.

    Raises:
        ConfigurationError: If the producer is an AsyncClient.
        ClientMistake: If the argument is neither a client nor a producer.
    """
    if isinstance(producer, AsyncClient):
        raise ConfigurationError("The Relay takes a Client, as it sends by threads; not an AsyncClient.")
    if isinstance(producer, Client):
        return lambda row: producer.run(send(made_of(row, new_message_of), producer.namespace, row.outbox_id))
    send_it = sending_of(producer, "send")
    return lambda row: send_it(made_of(row, message_of))


Made = TypeVar("Made")


def made_of(row: Row[Any], make: Callable[[Row[Any]], Made]) -> Made:
    """Return the message of a row. Raises `ClientMistake` if the row cannot be read."""
    try:
        return make(row)
    except (ValueError, TypeError, LookupError) as error:
        raise ClientMistake(f"Row {row.id} of the outbox cannot be read: {error!r}.") from error


def by_key(rows: Sequence[Row[Any]]) -> list[list[Row[Any]]]:
    """Group rows that must be sent one after the other."""
    lists: defaultdict[object, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        lists[(None, row.id) if row.order_key is None else row.order_key].append(row)
    return list(lists.values())


def claims_of(
    engine: Engine, lease_ms: int, elapsed_ms: Callable[[], int] = elapsed_clock_ms
) -> LockedRows | LeasedRows:
    """Return the implementation of claims for a database."""
    if engine.dialect.name in ("postgresql", *MYSQL):
        return LockedRows(engine)
    if engine.dialect.name == "sqlite":
        return LeasedRows(engine, uuid4().hex, lease_ms, elapsed_ms)
    raise UnknownChoice(f"The outbox works on {KNOWN}, not on {engine.dialect.name}.")
