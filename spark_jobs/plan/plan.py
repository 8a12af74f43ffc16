"""Repair plan for the findings of a run: a dry run with one line per step. No step is executed.

    kind        contents                               use
    message     topic, key, tag, properties, body      send it in a transaction, committed at once
    statement   SQL, or a Redis command                execute it in the database named by `store`
    command     a `tidewheel` command                  execute it against the broker
    look        the reason that no step is safe        examine the case by hand

Rules:
- A step may be repeated, delayed, or executed by two people: the receiver recognises the order by its ID and
  ignores a repetition, or the statement changes only data that is as it was read. `safe_to_repeat` is the
  reason.
- If two stores disagree and only a person can decide which one is right, the step is `look`: a plan never
  decides about money.
- An open half is ended by the broker's rule: commit if the database has its effect, else rollback.
- An order that waits for its payment has a deadline after the plan is executed. An overdue one gets it as a
  message without delay, because a timer would fire late.
- A message is a copy of one that the service sent, corrected by the row, or is modelled on the service's
  messages of other orders (`contents`).
- A cart is corrected by no more of an article than was ordered, because only that may be an effect of the
  order. A greater difference does not show whether the cart or the ledger is right.

The plan is `runs/<id>/plan.jsonl`. Each line also has subject, subject_id, case, and a description (`what`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, Final

from spark_jobs.cases import names
from spark_jobs.inputs.mapping import Mapping
from spark_jobs.inputs.schemas import ORDER
from spark_jobs.plan.contents import Contents
from spark_jobs.plan.reasons import UNSAFE, UNSAFE_ELSE
from spark_jobs.plan.sources import Lines, PlanSources, TimerName
from spark_jobs.runs import Run
from tidewheel.property_names import TIMER_KEY

ROWS_PER_TURN: Final = 500
SENT_AS: Final = "a half message, committed at once"
CORRECT_CART: Final = (
    "if tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0') == tonumber(ARGV[2]) then "
    "return redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end return false"
)
"""Lua script that sets a quantity if the cart still has the expected one. A missing article counts as 0."""

_OF_HALF: Final = re.compile(r"the half at (\d+)")
_OUTCOMES: Final = ("committed", "rolled back", "expired")
_UNSENT: Final = ("SCHEDULED", "FAILED")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the plan.

    `does` is the data of its kind. `safe` is the reason that the step may be repeated or, for `look`, that no
    step is safe.
    """

    kind: str
    what: str
    safe: str
    does: dict[str, Any]

    def as_json(self, row: Row) -> dict[str, Any]:
        """Return the step as a line of the plan."""
        named = {"subject": row["subject"], "subject_id": row["subject_id"], "case": row["case"]}
        reason = "why" if self.kind == "look" else "safe_to_repeat"
        return {"kind": self.kind, **named, "what": self.what, **self.does, reason: self.safe}


@dataclass(frozen=True, slots=True)
class Planning:
    """The inputs of the steps for a batch of findings.

    `lines` is None without a table of lines, or if no finding of the batch needs them. `as_of_ms` is the
    "now" of the audit, or None if unknown.
    """

    sources: PlanSources
    lines: Lines | None
    contents: Contents
    as_of_ms: int | None = None

    def lines_of(self, row: Row) -> list[dict[str, Any]] | None:
        """Return the lines of an order, or None if unknown."""
        return None if self.lines is None else self.lines.get(row["order_id"], [])


def write(run: Run, sources: PlanSources) -> Counter[str]:
    """Write the plan of a run, and return the number of steps by kind."""
    counts: Counter[str] = Counter()
    fresh = run.folders.plan.with_suffix(".new")
    with fresh.open("wb") as file:
        for row, step in planned(run.rows(), sources, run.as_of_ms, run.folders.orders):
            counts[step.kind] += 1
            line = json.dumps(step.as_json(row), ensure_ascii=False) + "\n"
            file.write(line.encode(errors="backslashreplace"))  # lone surrogates, as JSON escapes
    fresh.replace(run.folders.plan)
    return counts


def planned(
    rows: Iterable[Row], sources: PlanSources, as_of_ms: int | None = None, orders: Path | None = None
) -> Iterator[tuple[Row, Step]]:
    """Yield each finding with each of its steps (at least one). `orders` is the folder of a run's orders."""
    remaining, contents = iter(rows), Contents(sources, orders)
    while turn := list(islice(remaining, ROWS_PER_TURN)):
        lined = [row["order_id"] for row in turn if row["case"] in LINED]
        planning = Planning(sources, sources.lines_of(lined) if lined else None, contents, as_of_ms)
        for row in turn:
            for step in steps(row, planning):
                yield row, step


def steps(row: Row, planning: Planning) -> Iterable[Step]:
    """Return the steps for one finding, at least one. Raise `DatabaseUnreadable`."""
    found = list(REPAIRS[row["case"]](row, planning)) if row["case"] in REPAIRS else []
    return found or [look(row["why"] or "", UNSAFE.get(row["case"], UNSAFE_ELSE))]


def look(what: str, why: str) -> Step:
    """Return a step that only a person can take."""
    return Step("look", f"Look by hand: {what}", why, {})


def announce(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield the step that sends the order-created message of an order again."""
    yield message(
        "Announce the order again.",
        Wanted("order_created", row, planning),
        "The carts' ledger takes an order out of a cart once, however often it is announced; other consumers "
        "have to know an order by its id, as they have for any repeated message.",
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A message to send.

    `topic` is our name of the topic, `row` the order, and `properties` those by which the broker handles the
    message. `delivery_ms` is the delivery time of a delayed message, in milliseconds since 1970.
    """

    topic: str
    row: Row
    planning: Planning
    properties: dict[str, str] = field(default_factory=dict)
    delivery_ms: int | None = None

    @property
    def name(self) -> str:
        """Return the user's name of the topic."""
        return str(getattr(self.planning.sources.mapping.topics, self.topic))


def message(what: str, wanted: Wanted, safe: str) -> Step:
    """Return the step that sends a message, or `look` if its body is neither JSON nor text."""
    row, planning = wanted.row, wanted.planning
    content = planning.contents.of(wanted.topic, row, planning.lines_of(row))
    if content is None:
        return look(what, f"The order's message in {wanted.name} is neither JSON nor text: send it again.")
    lacking = [name for name in content.lacking if name != planning.sources.mapping.bodies.lines]
    if len(lacking) < len(content.lacking):
        what += " Its lines are to be filled in: give --orders to have them here."
    if lacking:
        what += f" To be filled in, as the service does it: {', '.join(dict.fromkeys(lacking))}."
    sent = {"topic": wanted.name, "key": row["order_id"], "sent_as": SENT_AS, **content.as_json()}
    sent |= {"properties": {**content.properties, **wanted.properties}, "body": content.body}
    sent |= {} if wanted.delivery_ms is None else {"delivery_ms": wanted.delivery_ms}
    return Step("message", what, safe, {"message": sent})


def correct_outcome(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield the steps after which the messages and the row of an order agree.

    A message is sent for each event that only the row has, and the row is changed for each event that only a
    message has. An order that waits for its payment gets a deadline. Payments, cancellations, and deadlines
    with an open half are skipped.
    """
    topics = planning.sources.mapping.topics
    undecided = {topic for _, topic in open_halves(row, topics.order_created)}
    if row["placed_ms"] is not None and row["committed_offset"] is None:
        yield from announce(row, planning)
    for change in (PAYMENT, CANCELLATION):
        if getattr(topics, change.topic) in undecided:
            continue
        was_changed = has_changed(row, change)
        was_told = row[change.offset] is not None
        if was_changed and not was_told:
            yield tell_change(row, planning, change)
        elif was_told and not was_changed and row["placed_ms"] is not None:
            yield change_row(row, planning, change)
    if topics.order_timeouts not in undecided and row["paid_offset"] is row["cancelled_offset"] is None:
        yield from set_deadline(row, planning)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an order.

    `status` is the new status, `column` the row's column of its time, `offset` the column of its message's
    log offset, `topic` our name of that message's topic, and `expected` the possible statuses before.
    """

    status: str
    column: str
    offset: str
    topic: str
    expected: tuple[str, ...]


PAYMENT: Final = Change("PAID", "paid_ms", "paid_offset", "order_paid", ("PLACED",))
CANCELLATION: Final = Change(
    "CANCELLED", "cancelled_ms", "cancelled_offset", "order_cancelled", ("PLACED", "PAID")
)


def has_changed(row: Row, change: Change) -> bool:
    """Return whether the row has a change: its time or, because the table may lack that, its status."""
    return row[change.column] is not None or row["status"] == change.status


def tell_change(row: Row, planning: Planning, change: Change) -> Step:
    """Return the step that sends the message of a change in the row. It also cancels an open deadline."""
    topics, timer = planning.sources.mapping.topics, open_timer(row, planning)
    cancel = {"TW_TIMER_CANCEL": timer.name, "TW_TIMER_TOPIC": topics.order_timeouts} if timer else {}
    safe = "Consumers know an order by its id; a deadline that has ended is cancelled without effect."
    wanted = Wanted(change.topic, row, planning, cancel)
    return message(f"Send the {wanted.name} message that the row promises.", wanted, safe)


def change_row(row: Row, planning: Planning, change: Change) -> Step:
    """Return the step that changes the row according to a committed message.

    The step is `look` if the row's status is not an expected one, or the time of the change is unknown.
    """
    at_ms = row["paid_message_ms"] if change is PAYMENT else told_ms(row, change)
    if row["status"] not in change.expected or at_ms is None:
        says = status_of(row["status"], planning)
        return look(
            row["why"], f"The row says {says}: only an operator can decide which of the two is right."
        )
    sources, orders = planning.sources, planning.sources.mapping.orders
    expected = [status for one in change.expected for status in sources.constants(orders, one)]
    values = {"status": sources.constants(orders, change.status)[0], change.column: at_ms}
    conditions = {"status": expected, change.column: None}
    sql = sources.update(orders, row["order_id"], values, conditions)
    before = " or ".join(status_of(one, planning) for one in change.expected)
    at = orders.columns.get(change.column)
    safe = f"It changes only a row that is still {before}{f' and has no {at}' if at else ''}."
    what = f"Make the row {values['status']}, as its committed message says."
    return statement(what, "orders", sql, safe)


def status_of(status: str | None, planning: Planning) -> str:
    """Return the user's names of a status of ours, joined by "or", or "nothing" without a status."""
    orders = planning.sources.mapping.orders
    return " or ".join(planning.sources.constants(orders, status)) if status else "nothing"


def told_ms(row: Row, change: Change) -> int | None:
    """Return the store time of the committed message of a change in milliseconds since 1970, or None."""
    at = (
        event["store_ms"] for event in row["timeline"] or [] if event["physical_offset"] == row[change.offset]
    )
    return next(at, None)


def statement(what: str, store: str, sql: str, safe: str) -> Step:
    """Return a step with an SQL statement for one of the databases."""
    return Step("statement", what, safe, {"store": store, "statement": sql})


def resolve_halves(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield the steps that end each open half as the database says, and then set a missing deadline.

    The half of a payment is `look` if the order has ended and its table has no time of payments.
    """
    topics = planning.sources.mapping.topics
    has_row = row["status"] is not None
    is_waiting = row["status"] == "PLACED" and not is_overdue(row, planning)
    happened = {topics.order_created: has_row, topics.order_timeouts: is_waiting}
    happened |= {
        getattr(topics, change.topic): has_changed(row, change) for change in (PAYMENT, CANCELLATION)
    }
    halves = open_halves(row, topics.order_created)
    for offset, topic in halves:
        has_happened = happened.get(topic, False)
        if topic == topics.order_paid and not has_happened and may_have_been_paid(row, planning):
            yield look(
                f"End the half of {topic} at log offset {offset}.",
                "Whether the order was paid before it ended is not known: its table has no time of payments.",
            )
            continue
        says = "has it" if has_happened else "has nothing of it"
        if topic == topics.order_timeouts and has_row:
            over = " and its time is over" if is_overdue(row, planning) else ""
            says = f"says that the order is {status_of(row['status'], planning)}{over}"
        outcome = "commit" if has_happened else "rollback"
        name = planning.sources.transaction_at(offset) or f"<transaction whose half lies at {offset}>"
        reason = quote(f"The database {says}.")
        yield Step(
            "command",
            f"End the half of {topic} at log offset {offset} by {outcome}: the database {says}.",
            "What has ended the same way stays as it is; what has ended the other way is refused.",
            {"command": f"tidewheel txn resolve {quote(name)} {outcome} --reason {reason}"},
        )
    if not (is_waiting and topics.order_timeouts in {topic for _, topic in halves}):
        yield from set_deadline(row, planning)


def may_have_been_paid(row: Row, planning: Planning) -> bool:
    """Return whether an ended order may have been paid before, because its table has no time of payments."""
    has_time = "paid_ms" in planning.sources.mapping.orders.columns
    return not has_time and row["status"] in ("TIMED_OUT", "CANCELLED")


def open_halves(row: Row, order_created: str) -> list[tuple[int, str]]:
    """Return the halves of an order without an outcome, as (log offset, topic).

    The note of an outcome contains the offset of its half. The commit of a half with a delivery time is a
    timer of the same topic at a greater offset.
    """
    events = row["timeline"] or []
    named = (_OF_HALF.search(event["note"] or "") for event in events if event["kind"] in _OUTCOMES)
    ended = {int(one[1]) for one in named if one}
    armed = {event["topic"]: event["physical_offset"] for event in events if event["kind"] == "timer"}
    found = {
        event["physical_offset"]: event["topic"]
        for event in events
        if event["kind"] == "half" and event["physical_offset"] > armed.get(event["topic"], -1)
    }
    if row["half_offset"] is not None and row["half_end"] is None:
        found[row["half_offset"]] = order_created
    return sorted((offset, topic) for offset, topic in found.items() if offset not in ended)


def set_push(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield the step that marks an unsent or failed push as delivered, if the log has its delivery.

    Yield nothing if the push is a dead letter or is not acknowledged.
    """
    sources, table = planning.sources, planning.sources.mapping.pushes
    is_untaken = row["dead_letter_offset"] is not None or row["is_consumed"] is False
    if row["status"] in _UNSENT and row["delivered_offset"] is not None and not is_untaken:
        values = {"status": sources.constants(table, "DELIVERED")[0], "delivered_ms": row["delivered_ms"]}
        unsent = [status for one in _UNSENT for status in sources.constants(table, one)]
        sql = sources.update(table, row["subject_id"], values, {"status": unsent})
        safe = "It changes only a push that is still to be sent or has failed."
        yield statement("Say in the ledger that the push was delivered.", "pushes", sql, safe)


def correct_cart(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield a step per article that sets the cart to the quantity of its ledger.

    The step is `look` if the order does not explain the difference, its lines are unknown, the ledger's
    quantity is negative, or the carts were read from Parquet.
    """
    lines = planning.lines_of(row)
    for article in row["surplus"] or []:
        sku, cart, ledger = article["sku"], article["cart"], article["ledger"]
        what = f"Make the cart of {row['customer_id']} hold {ledger} of {sku} instead of {cart}."
        ordered = sum(line["quantity"] or 0 for line in lines or [] if line["sku"] == sku)
        if lines is None:
            yield look(what, "Whether the order explains that is not known: give --orders to have its lines.")
        elif abs(ledger - cart) > ordered:
            yield look(
                what, f"The order has {ordered} of it: its effect, done twice or not, is less than that."
            )
        elif ledger < 0:
            yield look(what, "No cart holds less than nothing: the ledger may be the wrong one.")
        elif planning.sources.carts_kind == "redis":
            yield correct_redis(row, planning, what, article)
        elif planning.sources.carts_kind == "parquet":
            yield look(what, "Where these carts live is not known here.")
        else:
            yield correct_table(row, planning, what, article)


def correct_table(row: Row, planning: Planning, what: str, article: dict[str, Any]) -> Step:
    """Return the step that sets a quantity in the carts' table, if it is still the one that was read.

    A missing row counts as 0, and is inserted. Raise `DatabaseUnreadable`.
    """
    sources, carts = planning.sources, planning.sources.mapping.carts
    sku, cart, ledger = article["sku"], article["cart"], article["ledger"]
    named = {"customer_id": row["customer_id"], "sku": sku}
    if not cart and not sources.has_row(carts, named):
        sql = sources.insert(carts, named, {"quantity": ledger})
        return statement(what, "carts", sql, "It writes only a row that is not there.")
    held = {"sku": [sku], "quantity": [cart]}
    sql = sources.update(carts, row["customer_id"], {"quantity": ledger}, held)
    return statement(what, "carts", sql, f"It changes only a cart that still holds {cart}.")


def correct_redis(row: Row, planning: Planning, what: str, article: dict[str, Any]) -> Step:
    """Return the step that sets a quantity in Redis, if it is still the one that was read."""
    cart = planning.sources.mapping.redis.cart + row["customer_id"]
    words = ["EVAL", CORRECT_CART, "1", cart, article["sku"], str(article["cart"]), str(article["ledger"])]
    safe = f"It changes only a cart that still holds {article['cart']}."
    return Step("statement", what, safe, {"store": "carts", "redis": words})


def write_entry(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield the steps that write the missing ledger entry of what the order took out."""
    sources, table = planning.sources, planning.sources.mapping.ledger
    customer, taken = row["customer_id"], row["unwritten"] or []
    if not taken:
        return
    what = f"Write into the ledger of {customer} that the order took out "
    what += ", ".join(f"{article['quantity']} of {article['sku']}" for article in taken) + "."
    safe = "It writes only an entry that is not there."
    if sources.carts_kind == "redis":
        removed = {article["sku"]: article["quantity"] for article in taken}
        written = json.dumps({"removed": removed, "at_ms": row["committed_ms"]})
        key, field = sources.mapping.redis.ledger + customer, f"{ORDER}:{row['order_id']}"
        yield Step("statement", what, safe, {"store": "carts", "redis": ["HSETNX", key, field, written]})
    elif sources.carts_kind == "parquet":
        yield look(what, "Where this ledger lives is not known here.")
    else:
        for article in taken:
            entry = {"entry": sources.constants(table, ORDER)[0], "entry_id": row["order_id"]}
            named = {"customer_id": customer, **entry, "sku": article["sku"]}
            values = {"quantity": article["quantity"], "at_ms": row["committed_ms"]}
            yield statement(what, "carts", sources.insert(table, named, values), safe)


def clear_cart(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield the steps that correct the cart's surplus, and announce an uncleared order again.

    An order with a surplus is announced only if its message was acknowledged.
    """
    if row["surplus"]:
        yield from correct_cart(row, planning)
    if row["cleared_ms"] is None and (not row["surplus"] or row["is_consumed"]):
        yield from announce(row, planning)


def fire_timer(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield the step that delivers the open deadline now, or sets a deadline if none is open."""
    mapping, timer = planning.sources.mapping, open_timer(row, planning)
    topic = mapping.topics.order_timeouts
    if timer:
        option = "--id" if timer.is_id else "--timer-key"
        yield Step(
            "command",
            "Deliver the deadline now.",
            "A timer that has ended is refused; the order service times out only what is still placed.",
            {"command": f"tidewheel timer fire --topic {quote(topic)} {option} {quote(timer.name)}"},
        )
    else:
        yield from set_deadline(row, planning)


def set_deadline(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield the step that sends the deadline of an order that waits for its payment.

    Yield nothing if a deadline is open, or was delivered and not set again, or if the deadlines' topic, the
    row's time of placing, or the due time is missing.
    """
    due_ms = due_of(row)
    has_come = row["delivered_offset"] is not None and not row.get("is_rearmed")
    is_there = row["open_timer_offset"] is not None or has_come
    has_topic = bool(planning.sources.mapping.topics.order_timeouts)
    if not has_topic or row["status"] != "PLACED" or row["placed_ms"] is None or due_ms is None or is_there:
        return
    about = row | {"due_ms": due_ms}
    safe = "The order service times out only what is still placed."
    if is_overdue(row, planning):
        wanted = Wanted("order_timeouts", about, planning)
        yield message("Send the deadline: none is set that could fire.", wanted, safe)
        return
    wanted = Wanted("order_timeouts", about, planning, {TIMER_KEY: timer_key(row, planning)}, due_ms)
    what = "Set the deadline: none is set. A payment cancels it by its timer key."
    yield message(what, wanted, f"{safe} A timer takes the place of one with its key.")


def due_of(row: Row) -> int | None:
    """Return the due time of an order's payment in milliseconds since 1970, by its row or timer, or None."""
    due_ms: int | None = row["due_ms"] if row["due_ms"] is not None else row["timer_due_ms"]
    return due_ms


def is_overdue(row: Row, planning: Planning) -> bool:
    """Return whether an order's payment was overdue at the time of the audit."""
    due_ms = due_of(row)
    return due_ms is not None and planning.as_of_ms is not None and due_ms < planning.as_of_ms


def redrive(row: Row, planning: Planning) -> Iterator[Step]:
    """Yield the command per group that sends the order's dead letter back to it."""
    for group in dead_groups(row, planning.sources.mapping):
        yield Step(
            "command",
            "Send the dead letter back to its group, once what made it fail is repaired: tidewheel dlq ls "
            "tells.",
            "A letter goes back once; its consumer knows the order by its id.",
            {"command": f"tidewheel dlq redrive {quote(group)} --key {quote(row['order_id'])} --yes"},
        )


def dead_groups(row: Row, mapping: Mapping) -> list[str]:
    """Return the groups that dead-lettered a message of the order and have not acknowledged it since.

    The timeline does not show this, because a group also acknowledges a message that it dead-letters.
    """
    groups = mapping.groups
    found = [
        (groups.order_created, "dead_letter_offset", "is_redelivered"),
        (groups.order_timeouts, "deadline_dead_offset", "is_deadline_redelivered"),
    ]
    return [group for group, dead, again in found if row[dead] is not None and not row[again]]


def open_timer(row: Row, planning: Planning) -> TimerName | None:
    """Return the name of the open deadline, from the log or else by the mapping, or None without one."""
    offset = row.get("open_timer_offset")
    if offset is None:
        return None
    return planning.sources.timer_at(offset) or TimerName(timer_key(row, planning), is_id=False)


def timer_key(row: Row, planning: Planning) -> str:
    """Return the timer key of an order's deadline: that of its last timer in the log, else by the mapping."""
    before = None if row["timer_offset"] is None else planning.sources.timer_at(row["timer_offset"])
    if before is not None and not before.is_id:
        return before.name
    return f"{planning.sources.mapping.timers.order_timeouts}{row['order_id']}"


REPAIRS: Final[dict[str, Callable[[Row, Planning], Iterable[Step]]]] = {
    names.ORDER_WITHOUT_MESSAGE: correct_outcome,
    names.OUTCOME_CONTRADICTS_DATABASE: correct_outcome,
    names.HALF_UNRESOLVED: resolve_halves,
    names.EFFECT_TWICE: correct_cart,
    names.LEDGER_ENTRY_MISSING: write_entry,
    names.CART_NOT_CLEARED: clear_cart,
    names.TIMEOUT_NOT_FIRED: fire_timer,
    names.DEAD_LETTERED: redrive,
    names.PUSHES_DO_NOT_SUM: set_push,
}

LINED: Final = frozenset({
    names.ORDER_WITHOUT_MESSAGE, names.OUTCOME_CONTRADICTS_DATABASE, names.EFFECT_TWICE,
    names.CART_NOT_CLEARED,
})  # fmt: skip
"""Cases whose repair may need an order's lines."""
