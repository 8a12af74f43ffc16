"""Services of somebody else: tables, columns, statuses and topics in several languages, in a real database.

Each is what a service would have written: orders that are placed, paid, given up or cancelled, and the log
that their messages would leave. Beside them lie tables that are not the orders and whose ids are the same
numbers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, text

from spark_jobs.proposing.facts import LogFacts, Message, Topic

START_MS = 1_795_000_000_000
MINUTE_MS = 60_000
OURS = ("PLACED", "PAID", "TIMED_OUT", "CANCELLED")
TIMES = ("placed_ms", "due_ms", "paid_ms", "timed_out_ms", "cancelled_ms")
TOPICS = ("order_created", "order_timeouts", "order_paid", "order_cancelled")


@dataclass(frozen=True)
class Tongue:
    """What a service calls its things: the order's columns in our order, statuses and topics likewise."""

    table: str
    columns: tuple[str, ...]
    statuses: tuple[str, ...]
    topics: tuple[str, ...]
    customers: str
    body_key: str = "id"

    @property
    def by_ours(self) -> dict[str, str]:
        """Our column -> theirs."""
        ours = ("order_id", "customer_id", "status", "total_pence", *TIMES)
        return dict(zip(ours, self.columns, strict=True))


TONGUES = {
    "theatre": Tongue(
        "bookings",
        ("booking_no", "guest_id", "state", "price_cents", "booked_at", "hold_until", "settled_at",
         "lapsed_at", "voided_at"),
        ("held", "settled", "lapsed", "void"),
        ("booking-made", "booking-holds", "booking-settled", "booking-voided"),
        "guests",
    ),
    "camel": Tongue(
        "PurchaseOrder",
        ("PurchaseOrderId", "BuyerId", "OrderState", "TotalCents", "CreatedAt", "PayBy", "PaidAt",
         "ExpiredAt", "CancelledAt"),
        ("NEW", "PAID", "EXPIRED", "CANCELLED"),
        ("purchase.created", "purchase.deadline", "purchase.paid", "purchase.cancelled"),
        "Buyer",
    ),
    "german": Tongue(
        "bestellung",
        ("nummer", "kunde", "zustand", "betrag_cent", "angelegt_am", "zahlbar_bis", "bezahlt_am",
         "verfallen_am", "storniert_am"),
        ("offen", "bezahlt", "verfallen", "storniert"),
        ("bestellung-angelegt", "zahlungsfristen", "bestellung-bezahlt", "bestellung-storniert"),
        "kunden",
    ),
    "french": Tongue(
        "commandes",
        ("numéro", "client", "état", "montant", "créée_le", "échéance", "payée_le", "expirée_le",
         "annulée_le"),
        ("ouverte", "payée", "expirée", "annulée"),
        ("commande-passee", "commande-echeance", "commande-payee", "commande-annulee"),
        "clients",
    ),
    "spanish": Tongue(
        "pedidos",
        ("codigo", "cliente", "estado", "importe", "creado", "vence", "pagado", "caducado", "anulado"),
        ("abierto", "pagado", "caducado", "anulado"),
        ("pedido-creado", "pedido-vence", "pedido-pagado", "pedido-anulado"),
        "clientes",
    ),
    "polish": Tongue(
        "zamówienia",
        ("numer", "klient", "stan", "kwota", "utworzono", "termin", "opłacono", "wygasło", "anulowano"),
        ("nowe", "zaplacone", "wygasle", "anulowane"),
        ("zamowienie-nowe", "zamowienie-termin", "zamowienie-zaplacone", "zamowienie-anulowane"),
        "klienci",
    ),
    "japanese": Tongue(
        "注文",
        ("番号", "顧客", "状態", "金額", "作成日", "期限", "支払日", "失効日", "取消日"),
        ("新規", "支払済", "失効", "取消"),
        ("order-new", "order-limit", "order-paid", "order-cancel"),
        "顧客一覧",
    ),
}  # fmt: skip


@dataclass
class Written:
    """A service that has written its orders: what is in the log, and the log's keys."""

    tongue: Tongue
    log: LogFacts
    keys: list[str] = field(default_factory=list)


def write(
    engine: Engine, tongue: Tongue, key_kind: str, time_kind: str, seed: int, orders: int = 24
) -> Written:
    """Write a service's tables into an empty database, in any order of tables and columns."""
    chance = random.Random(seed)
    rows = [_row(number, tongue, key_kind, chance) for number in range(1, orders + 1)]
    columns = list(tongue.columns)
    chance.shuffle(columns)
    types = _types(tongue, key_kind, time_kind, engine.dialect.name)
    customers = f'CREATE TABLE "{tongue.customers}" (id INTEGER PRIMARY KEY, name TEXT, created_at BIGINT)'
    described = ", ".join(f'"{name}" {types[name]}' for name in columns)
    statements = [
        f'CREATE TABLE "{tongue.table}" ({described})',
        "CREATE TABLE stock_article (id INTEGER PRIMARY KEY, label TEXT, price INTEGER)",
        "CREATE TABLE audit_trail (id INTEGER PRIMARY KEY, thing TEXT, happened_at BIGINT)",
    ]
    chance.shuffle(statements)
    key = tongue.columns[0]
    with engine.begin() as connection:
        for statement in (customers, *statements):
            connection.execute(text(statement))
        for number in range(1, orders + 1):
            values = {"id": number, "name": f"name {number}", "at": START_MS - number * 86_400_000}
            connection.execute(text(f'INSERT INTO "{tongue.customers}" VALUES (:id, :name, :at)'), values)
            connection.execute(text("INSERT INTO stock_article VALUES (:id, :name, 5)"), values)
            trail = {"id": number, "thing": str(rows[number - 1][key]), "at": values["at"]}
            connection.execute(text("INSERT INTO audit_trail VALUES (:id, :thing, :at)"), trail)
        for row in rows:
            names = ", ".join(f'"{name}"' for name in columns)
            marks = ", ".join(f":v{place}" for place in range(len(columns)))
            shown = {
                f"v{place}": _shown(row[name], name in tongue.columns[4:], time_kind)
                for place, name in enumerate(columns)
            }
            connection.execute(text(f'INSERT INTO "{tongue.table}" ({names}) VALUES ({marks})'), shown)
    return Written(tongue, _log(tongue, rows), [str(row[key]) for row in rows])


def _row(number: int, tongue: Tongue, key_kind: str, chance: random.Random) -> dict[str, Any]:
    placed_ms = START_MS + number * 10 * MINUTE_MS
    ours = OURS[number % len(OURS)]
    ended_ms = placed_ms + chance.randrange(3, 20) * MINUTE_MS
    due_ms = placed_ms + 30 * MINUTE_MS
    ends = {"PAID": ended_ms, "CANCELLED": ended_ms, "TIMED_OUT": due_ms + 200}
    key: Any = {
        "number": number,
        "text": f"K-{number:04d}",
        "uuid": str(UUID(int=chance.getrandbits(128), version=4)),
    }[key_kind]
    values = {
        "order_id": key,
        "customer_id": 1 + number % 7,
        "status": tongue.statuses[OURS.index(ours)],
        "total_pence": 1_000 + number * 37,
        "placed_ms": placed_ms,
        "due_ms": due_ms,
        "paid_ms": ends["PAID"] if ours == "PAID" else None,
        "timed_out_ms": ends["TIMED_OUT"] if ours == "TIMED_OUT" else None,
        "cancelled_ms": ends["CANCELLED"] if ours == "CANCELLED" else None,
    }
    return {tongue.by_ours[name]: value for name, value in values.items()}


def _types(tongue: Tongue, key_kind: str, time_kind: str, dialect: str) -> dict[str, str]:
    key = {"number": "INTEGER", "text": "TEXT", "uuid": "uuid" if dialect == "postgresql" else "TEXT"}[
        key_kind
    ]
    time = {"ms": "BIGINT", "iso": "timestamptz" if dialect == "postgresql" else "TEXT"}[time_kind]
    first = {
        tongue.columns[0]: f"{key} PRIMARY KEY",
        tongue.columns[1]: f'INTEGER REFERENCES "{tongue.customers}"',
        tongue.columns[2]: "TEXT",
        tongue.columns[3]: "INTEGER",
    }
    return first | dict.fromkeys(tongue.columns[4:], time)


def _shown(value: Any, is_time: bool, time_kind: str) -> Any:
    if not is_time or time_kind == "ms" or value is None:
        return value
    return datetime.fromtimestamp(value / 1000, UTC).isoformat()


def _log(tongue: Tongue, rows: list[dict[str, Any]]) -> LogFacts:
    named = tongue.by_ours
    by_name = dict(zip(TOPICS, tongue.topics, strict=True))

    def messages(at: str, due: bool = False) -> tuple[Message, ...]:
        return tuple(
            Message(
                str(row[named["order_id"]]),
                {tongue.body_key: row[named["order_id"]], "who": row[named["customer_id"]]},
                row[named["placed_ms" if due else at]] + 90,
                row[named["due_ms"]] if due else None,
            )
            for row in rows
            if row[named[at]] is not None
        )

    created, timeouts = messages("placed_ms"), messages("due_ms", due=True)
    paid, cancelled = messages("paid_ms"), messages("cancelled_ms")
    topics = (
        Topic(by_name["order_created"], len(created), messages=created, groups={"stage": len(created)}),
        Topic(
            by_name["order_timeouts"], len(timeouts), delayed=len(timeouts), delivered=6, messages=timeouts,
            groups={"clock": 6},
        ),
        Topic(
            by_name["order_paid"], len(paid), messages=paid, cancels={by_name["order_timeouts"]: len(paid)}
        ),
        Topic(
            by_name["order_cancelled"], len(cancelled), messages=cancelled,
            cancels={by_name["order_timeouts"]: len(cancelled)},
        ),
    )  # fmt: skip
    last_ms = max(one.stored_ms for topic in topics for one in topic.messages) + 60 * MINUTE_MS
    return LogFacts(tuple(sorted(topics, key=lambda one: one.name)), 100, last_ms)
