"""A ferry line's booking service, written with the public client, with tables of its own in three databases.

Nothing in it has a name that the audit knows: tables, columns and statuses are Spanish, topics and groups its
own; amounts are in euros and yen. What a traveller wants to book lies in a basket (`cesta`), whose every
change is in a ledger (`movimiento`).

    reservas      a booking is made            read by `bodega`, which takes the places out of the basket
    plazos        its deadline, a timer        read by `taquilla`, which gives up what is not paid
    cobros        it is paid                   cancels the deadline
    anulaciones   it is cancelled              likewise

SQLite has texts and milliseconds; PostgreSQL uuids, an enum and timestamps with a zone; MariaDB char(n),
unsigned numbers and local times. On MariaDB, which the barrier does not know, the service sends its halves
by hand.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.orm import sessionmaker

from tidewheel import Barrier, Client, Message, NewMessage
from tidewheel.client import halves
from tidewheel.testing.process import BrokerProcess

BOOKED, DEADLINES, PAID, CANCELLED = TOPICS = ("reservas", "plazos", "cobros", "anulaciones")
BASKETS, COUNTER = "bodega", "taquilla"
PULSE: Final = "pulso"
TAG: Final = "puerto"
TIMEOUT: Final = timedelta(minutes=5)
AGAIN: Final = timedelta(minutes=20)
"""After that a message comes again that was put off."""
MADRID: Final = timezone(timedelta(hours=1))

MAPPING: Final = """
[orders]
table = "reserva"
zone = "+01:00"
order_id = "localizador"
customer_id = "viajero"
status = "estado"
total_pence = "importe"
currency = "divisa"
placed_ms = "creada"
due_ms = "limite"
paid_ms = "abonada_en"
timed_out_ms = "vencida_en"
cancelled_ms = "anulada_en"
[orders.statuses]
PLACED = "pendiente"
PAID = "abonada"
TIMED_OUT = "vencida"
CANCELLED = "anulada"
[order_lines]
table = "pasaje"
order_id = "reserva"
sku = "tarifa"
quantity = "plazas"
[carts]
table = "cesta"
customer_id = "viajero"
sku = "tarifa"
quantity = "plazas"
[ledger]
table = "movimiento"
zone = "+01:00"
customer_id = "viajero"
entry = "clase"
entry_id = "origen"
sku = "tarifa"
quantity = "plazas"
at_ms = "hecho"
[ledger.entries]
add = "entra"
order = "sale"
[topics]
order_created = "reservas"
order_timeouts = "plazos"
order_paid = "cobros"
order_cancelled = "anulaciones"
pushes = ""
[groups]
order_created = "bodega"
order_timeouts = "taquilla"
[timers]
order_timeouts = "plazo/"
[bodies]
order_id = "localizador"
customer_id = "viajero"
placed_ms = "creada"
lines = "pasajes"
sku = "tarifa"
quantity = "plazas"
due_ms = "limite"
paid_ms = "abonada"
cancelled_ms = "anulada"
total_pence = "importe"
"""

TABLES: Final = """
CREATE TABLE reserva (
    localizador {id} PRIMARY KEY, viajero {traveller}, estado {status}, importe {count}, divisa {currency},
    creada {time}, limite {time}, abonada_en {time}, vencida_en {time}, anulada_en {time}
);
CREATE TABLE pasaje (reserva {id}, tarifa {word}, plazas {count}, PRIMARY KEY (reserva, tarifa));
CREATE TABLE cesta (viajero {traveller}, tarifa {word}, plazas {count}, PRIMARY KEY (viajero, tarifa));
CREATE TABLE movimiento (
    viajero {traveller}, clase {word}, origen {word}, tarifa {word}, plazas {count}, hecho {time}
)
"""
CHANGE: Final = (
    "UPDATE reserva SET estado = '{0}', {0}_en = :at_ms WHERE localizador = :id AND estado = 'pendiente'"
)
STATUSES: Final = "'pendiente', 'abonada', 'vencida', 'anulada'"


@dataclass(frozen=True)
class Kind:
    """How a kind of database holds the service's values."""

    types: dict[str, str]
    id_of: Callable[[int], str]
    time_of: Callable[[int], Any]
    """Milliseconds since 1970 -> what a column of times holds."""
    first: str = ""
    has_barrier: bool = True


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


KINDS: Final = {
    "sqlite": Kind(
        {
            "id": "TEXT", "traveller": "INTEGER", "status": "TEXT", "count": "INTEGER", "currency": "TEXT",
            "time": "INTEGER", "word": "TEXT",
        },
        lambda number: f"R {number:04d}'s;$1",  # what keys, a shell and SQL have to quote
        lambda at_ms: at_ms,
    ),
    "postgresql": Kind(
        {
            "id": "UUID", "traveller": "BIGINT", "status": "estado_de_reserva", "count": "BIGINT",
            "currency": "CHAR(3)", "time": "TIMESTAMP(3) WITH TIME ZONE", "word": "TEXT",
        },
        lambda number: str(uuid.uuid5(uuid.NAMESPACE_URL, f"ferry/{number}")),
        _moment,
        f"CREATE TYPE estado_de_reserva AS ENUM ({STATUSES})",
    ),
    "mariadb": Kind(
        {
            "id": "CHAR(20)", "traveller": "INT UNSIGNED", "status": f"ENUM({STATUSES})",
            "count": "INT UNSIGNED", "currency": "CHAR(3)", "time": "DATETIME(3)", "word": "VARCHAR(64)",
        },
        lambda number: f"R {number:04d}'s;%1",
        lambda at_ms: _moment(at_ms).astimezone(MADRID).replace(tzinfo=None),
        has_barrier=False,
    ),
}  # fmt: skip

Lines = dict[str, int]
"""Fare -> places."""


def wanted(lines: Lines) -> Lines:
    """Return what is in the basket before these are booked: two places of each fare are left over."""
    return {fare: places + 2 for fare, places in lines.items()}


@dataclass
class Half:
    """A half that was sent and not ended."""

    transaction_id: str
    message: NewMessage


@dataclass
class Ferry:
    """The service on a broker with a virtual clock; its times are the broker's."""

    broker: BrokerProcess
    url: str
    kind: Kind
    offset_ms: int = 0
    count: int = 0
    dead: set[tuple[str, str]] = field(default_factory=set)
    """(topic, booking) on whose message the service fails."""
    slow: set[tuple[str, str]] = field(default_factory=set)
    """(topic, booking) whose message the service puts off."""

    def __post_init__(self) -> None:
        self.engine = create_engine(self.url)
        self.client = Client(f"http://{self.broker.http}", timeout=300)
        self.barrier = Barrier(sessionmaker(self.engine)) if self.kind.has_barrier else None
        with self.engine.begin() as database:
            for statement in (self.kind.first, *TABLES.format(**self.kind.types).split(";")):
                if statement:
                    database.execute(text(statement))
        if self.barrier:
            self.barrier.create_table()

    def close(self) -> None:
        self.client.close()
        self.engine.dispose()

    @property
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms

    def run(self, statement: str, **values: Any) -> list[Any]:
        """Execute a statement; return its rows. Values named `*_ms` become the database's times."""
        with self.engine.begin() as database:
            return self._run(database, statement, values)

    def _run(self, database: Connection, statement: str, values: dict[str, Any]) -> list[Any]:
        held = {
            name: self.kind.time_of(value) if name.endswith("_ms") and value is not None else value
            for name, value in values.items()
        }
        done = database.execute(text(statement), held)
        return list(done.all()) if done.returns_rows else []

    def answering(self) -> AbstractContextManager[None]:
        """Return a block in which transactions may be begun, and check-backs are answered."""
        return self.barrier.answering(self.client, *TOPICS) if self.barrier else nullcontext()

    @contextmanager
    def transaction(self, *messages: NewMessage) -> Iterator[Connection]:
        """Send messages that are committed with what is done in the block."""
        if self.barrier:
            with self.barrier.transaction(self.client, *messages) as session:
                yield session.connection()
            return
        begun = [self.begin(one) for one in messages]
        with self.engine.begin() as database:
            yield database
        for half in begun:
            self.commit(half)

    def begin(self, message: NewMessage) -> Half:
        """Send a half, outside of the barrier."""
        started = halves.begin(message, "", uuid.uuid4().hex.upper(), {})
        return Half(self.client.run(started).transaction_id, message)

    def commit(self, half: Half) -> None:
        self.client.run(halves.commit(half.transaction_id, half.message))

    def new_id(self) -> tuple[str, int]:
        """Return the id of a booking, and a traveller of its own."""
        self.count += 1
        return self.kind.id_of(self.count), 1_000 + self.count

    # What the service does

    def fill_basket(self, traveller: int, lines: Lines) -> None:
        for fare, places in lines.items():
            self.count += 1
            here = {"traveller": traveller, "fare": fare}
            known = "SELECT plazas FROM cesta WHERE viajero = :traveller AND tarifa = :fare"
            if self.run(known, **here):
                self.change_basket(traveller, fare, places)
            else:
                self.run("INSERT INTO cesta VALUES (:traveller, :fare, :places)", **here, places=places)
            entry = "INSERT INTO movimiento VALUES (:traveller, 'entra', :origin, :fare, :places, :at_ms)"
            self.run(entry, **here, origin=f"alta-{self.count}", places=places, at_ms=self.now_ms)

    def change_basket(self, traveller: int, fare: str, difference: int) -> None:
        statement = "UPDATE cesta SET plazas = plazas + :more WHERE viajero = :traveller AND tarifa = :fare"
        self.run(statement, traveller=traveller, fare=fare, more=difference)

    def booked(self, booking: str, traveller: int, lines: Lines) -> NewMessage:
        listed = [{"tarifa": fare, "plazas": places, "canal": "web"} for fare, places in lines.items()]
        body = {"localizador": booking, "viajero": traveller, "creada": self.now_ms, "pasajes": listed}
        return NewMessage(BOOKED, body, keys=[booking], tag=TAG, properties={"origen": "web"})

    def deadline(self, booking: str, after: timedelta = TIMEOUT) -> NewMessage:
        body = {"localizador": booking, "limite": self.now_ms + after // timedelta(milliseconds=1)}
        return NewMessage(DEADLINES, body, keys=[booking], delay=after, key=f"plazo/{booking}")

    def payment(self, booking: str) -> NewMessage:
        body = {"localizador": booking, "abonada": self.now_ms}
        return NewMessage(PAID, body, keys=[booking], cancel=self.timer(booking))

    def cancellation(self, booking: str) -> NewMessage:
        body = {"localizador": booking, "anulada": self.now_ms}
        return NewMessage(CANCELLED, body, keys=[booking], cancel=self.timer(booking))

    def timer(self, booking: str) -> Any:
        return self.client.timer(DEADLINES, f"plazo/{booking}")

    def due_in(self, booking: str) -> timedelta:
        """Return how far away a deadline is that waits."""
        due: datetime | None = self.timer(booking).get().due
        assert due is not None, booking
        return max(timedelta(), due - datetime.now(UTC))

    def write_rows(
        self, database: Connection, booking: str, traveller: int, lines: Lines, due: timedelta = TIMEOUT
    ) -> None:
        now_ms, places = self.now_ms, sum(lines.values())
        is_yen = traveller % 2 == 0
        row = {
            "booking": booking,
            "traveller": traveller,
            "amount": places * (4_500 if is_yen else 2_995),
            "currency": "JPY" if is_yen else "EUR",
            "placed_ms": now_ms,
            "due_ms": now_ms + due // timedelta(milliseconds=1),
        }
        columns = "localizador, viajero, estado, importe, divisa, creada, limite"
        values = ":booking, :traveller, 'pendiente', :amount, :currency, :placed_ms, :due_ms"
        self._run(database, f"INSERT INTO reserva ({columns}) VALUES ({values})", row)
        for fare, count in lines.items():
            line = {"booking": booking, "fare": fare, "places": count}
            self._run(database, "INSERT INTO pasaje VALUES (:booking, :fare, :places)", line)

    def book(self, booking: str, traveller: int, lines: Lines) -> None:
        """Fill the basket with more than is booked, and book."""
        self.fill_basket(traveller, wanted(lines))
        messages = self.booked(booking, traveller, lines), self.deadline(booking)
        with self.transaction(*messages) as database:
            self.write_rows(database, booking, traveller, lines)

    def pay(self, booking: str) -> None:
        with self.transaction(self.payment(booking)) as database:
            self._run(database, CHANGE.format("abonada"), {"id": booking, "at_ms": self.now_ms})

    def cancel(self, booking: str) -> None:
        with self.transaction(self.cancellation(booking)) as database:
            self._run(database, CHANGE.format("anulada"), {"id": booking, "at_ms": self.now_ms})

    def lapse(self, deadline: Any) -> None:
        self.run(CHANGE.format("vencida"), id=deadline["localizador"], at_ms=self.now_ms)

    def empty_basket(self, booked: Any) -> None:
        """Take what was booked out of the basket, once."""
        booking, traveller = booked["localizador"], booked["viajero"]
        known = "SELECT origen FROM movimiento WHERE clase = 'sale' AND origen = :booking"
        if self.run(known, booking=booking):
            return
        for line in booked["pasajes"]:
            self.change_basket(traveller, line["tarifa"], -line["plazas"])
            entry = {"traveller": traveller, "origin": booking, "at_ms": self.now_ms}
            entry |= {"fare": line["tarifa"], "places": line["plazas"]}
            self.run(
                "INSERT INTO movimiento VALUES (:traveller, 'sale', :origin, :fare, :places, :at_ms)", **entry
            )

    def consume(self) -> None:
        """Let both consumers do what there is to do."""
        for topic, group, act in (
            (BOOKED, BASKETS, self.empty_basket),
            (DEADLINES, COUNTER, self.lapse),
        ):
            while batch := self.client.receive(topic, group, count=32, wait="200ms"):
                for message in batch:
                    self._consume_one(topic, message, act)

    def _consume_one(self, topic: str, message: Message, act: Callable[[Any], None]) -> None:
        body = message.json()
        if topic == BOOKED:
            assert (message.tag, type(body["viajero"]), type(body["creada"])) == (TAG, int, int), body
        if (topic, body["localizador"]) in self.dead:
            message.reject("the service fails on it")
        elif (topic, body["localizador"]) in self.slow:
            message.retry(AGAIN)
        else:
            act(body)
            message.ack()

    def advance(self, span: timedelta) -> None:
        """Let time pass for broker and service; what is due on the way happens at its time."""
        ms = span // timedelta(milliseconds=1)
        self.broker.post("/api/clock/advance", {"by": f"{ms}ms"})
        self.offset_ms += ms

    def pulse(self) -> None:
        """Send a message of no booking, so that the log's time is now."""
        self.client.send(PULSE, {"en": self.now_ms})
