"""How the findings of a run could be repaired: a dry run, one line per step, of which nothing is carried out.

    kind        what it holds                        done by
    message     topic, key, tag, properties, body    sending it as a transaction that is committed at once
    statement   SQL, or a script for Redis           the database named by `store`
    command     a `tidewheel` command                an operator, against the broker
    look        why nothing safe can be proposed     a person

Rules:
- A step may be done twice, or late, or by two people: the receiver knows the order and does nothing the
  second time, or the statement changes only what is still as it was seen. `safe_to_repeat` says which.
- Where two stores disagree and nobody but a person can say which one is right, the step is `look`: a plan
  never decides about money.
- The broker's rule decides for halves: what the database says has happened is committed, else rolled back.
- An order that still waits for its payment has a deadline once a plan is carried out. One that is overdue
  gets it as a message that comes at once, not as a timer, which would fire late.
- A message is one that the service itself has sent, or as it would send it (`contents`).
- A cart is corrected only by what the order may have done to it: no more of an article than was ordered.
  Which of cart and ledger is right otherwise, nobody can say who sees only these two.

The plan is `runs/<id>/plan.jsonl`; each line also has subject, subject_id, case, and what would be done.
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
"""Sets a quantity where the cart still holds what it held; an article that the cart lacks is 0 of it."""

_OF_HALF: Final = re.compile(r"the half at (\d+)")
_OUTCOMES: Final = ("committed", "rolled back", "expired")
_UNSENT: Final = ("SCHEDULED", "FAILED")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `does` holds what its kind needs; `safe` is why it may be repeated, or why there is none."""

    kind: str
    what: str
    safe: str
    does: dict[str, Any]

    def as_json(self, row: Row) -> dict[str, Any]:
        """Return a line of the plan."""
        named = {"subject": row["subject"], "subject_id": row["subject_id"], "case": row["case"]}
        reason = "why" if self.kind == "look" else "safe_to_repeat"
        return {"kind": self.kind, **named, "what": self.what, **self.does, reason: self.safe}


@dataclass(frozen=True, slots=True)
class Planning:
    """What the steps of a turn are made from; `lines` are None where no order database was given.

    as_of_ms is the "now" of the audit, None where that is not known.
    """

    sources: PlanSources
    lines: Lines | None
    contents: Contents
    as_of_ms: int | None = None

    def lines_of(self, row: Row) -> list[dict[str, Any]] | None:
        """Return the lines of an order; None where they are not known."""
        return None if self.lines is None else self.lines.get(row["order_id"], [])


def write(run: Run, sources: PlanSources) -> Counter[str]:
    """Write the plan of a run; return how many steps there are of each kind."""
    counts: Counter[str] = Counter()
    fresh = run.folders.plan.with_suffix(".new")
    with fresh.open("wb") as file:
        for row, step in planned(run.rows(), sources, run.as_of_ms, run.folders.orders):
            counts[step.kind] += 1
            line = json.dumps(step.as_json(row), ensure_ascii=False) + "\n"
            file.write(line.encode(errors="backslashreplace"))  # half a surrogate pair, as JSON escapes it
    fresh.replace(run.folders.plan)
    return counts


def planned(
    rows: Iterable[Row], sources: PlanSources, as_of_ms: int | None = None, orders: Path | None = None
) -> Iterator[tuple[Row, Step]]:
    """Yield each finding with each of its steps, at least one; `orders` is the folder of all orders."""
    remaining, contents = iter(rows), Contents(sources, orders)
    while turn := list(islice(remaining, ROWS_PER_TURN)):
        lined = [row["order_id"] for row in turn if row["case"] in LINED]
        planning = Planning(sources, sources.lines_of(lined) if lined else None, contents, as_of_ms)
        for row in turn:
            for step in steps(row, planning):
                yield row, step


def steps(row: Row, planning: Planning) -> Iterable[Step]:
    """Return the steps for one finding, at least one."""
    found = list(REPAIRS[row["case"]](row, planning)) if row["case"] in REPAIRS else []
    return found or [look(row["why"] or "", UNSAFE.get(row["case"], UNSAFE_ELSE))]


def look(what: str, why: str) -> Step:
    """Return a step that only a person can take."""
    return Step("look", f"Look by hand: {what}", why, {})


def announce(row: Row, planning: Planning) -> Iterator[Step]:
    """Say again that an order was placed."""
    yield message(
        "Announce the order again.",
        Wanted("order_created", row, planning),
        "The carts' ledger takes an order out of a cart once, however often it is announced; other consumers "
        "have to know an order by its id, as they have for any repeated message.",
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A message that is to be sent: in which topic of ours, about which order; properties by which the broker
    acts on it, and when it is delivered if it is delayed.
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
    """Return a message to be sent; a step for a person where a plan cannot hold what the service sends."""
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
    """Make messages and row say the same, the row being right wherever it says that something happened; an
    order that waits for its payment gets a deadline.
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
    """A change of an order: its new status, the row's column, its message, from which statuses."""

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
    """Return whether the row says a change, by its time or, as the table may lack that, by its status."""
    return row[change.column] is not None or row["status"] == change.status


def tell_change(row: Row, planning: Planning, change: Change) -> Step:
    """Send the message of a change that the row has; it also cancels the deadline."""
    topics, timer = planning.sources.mapping.topics, open_timer(row, planning)
    cancel = {"TW_TIMER_CANCEL": timer.name, "TW_TIMER_TOPIC": topics.order_timeouts} if timer else {}
    safe = "Consumers know an order by its id; a deadline that has ended is cancelled without effect."
    wanted = Wanted(change.topic, row, planning, cancel)
    return message(f"Send the {wanted.name} message that the row promises.", wanted, safe)


def change_row(row: Row, planning: Planning, change: Change) -> Step:
    """Change the row as its committed message says, if nothing else has happened to the order."""
    at_ms = row["paid_message_ms"] if change is PAYMENT else told_ms(row, change)
    if row["status"] not in change.expected or at_ms is None:
        says = status_of(row["status"], planning)
        return look(row["why"], f"The row says {says}: only a person can say which of the two is right.")
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
    """Return what the user calls a status of ours."""
    orders = planning.sources.mapping.orders
    return " or ".join(planning.sources.constants(orders, status)) if status else "nothing"


def told_ms(row: Row, change: Change) -> int | None:
    """Return when the committed message of a change was stored."""
    at = (
        event["store_ms"] for event in row["timeline"] or [] if event["physical_offset"] == row[change.offset]
    )
    return next(at, None)


def statement(what: str, store: str, sql: str, safe: str) -> Step:
    """Return a statement for one of the databases."""
    return Step("statement", what, safe, {"store": store, "statement": sql})


def resolve_halves(row: Row, planning: Planning) -> Iterator[Step]:
    """End each open half as the database says; an order that waits for its payment has a deadline then."""
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
    """Return whether an order has ended that may have been paid before: its table has no time of that."""
    has_time = "paid_ms" in planning.sources.mapping.orders.columns
    return not has_time and row["status"] in ("TIMED_OUT", "CANCELLED")


def open_halves(row: Row, order_created: str) -> list[tuple[int, str]]:
    """Return the halves of an order without an outcome, as (log offset, topic).

    An outcome names its half; the commit of a half with a delivery time is a timer of its topic behind it.
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
    """Let the ledger say of a push what the log says: that it was delivered, and taken by its consumer."""
    sources, table = planning.sources, planning.sources.mapping.pushes
    is_untaken = row["dead_letter_offset"] is not None or row["is_consumed"] is False
    if row["status"] in _UNSENT and row["delivered_offset"] is not None and not is_untaken:
        values = {"status": sources.constants(table, "DELIVERED")[0], "delivered_ms": row["delivered_ms"]}
        unsent = [status for one in _UNSENT for status in sources.constants(table, one)]
        sql = sources.update(table, row["subject_id"], values, {"status": unsent})
        safe = "It changes only a push that is still to be sent or has failed."
        yield statement("Say in the ledger that the push was delivered.", "pushes", sql, safe)


def correct_cart(row: Row, planning: Planning) -> Iterator[Step]:
    """Make a cart hold what its ledger says, article by article, where the order explains the difference."""
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
    """Change a quantity in a table once; an article without a row is one of which the cart holds nothing."""
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
    """Change a quantity in Redis once, as `correct_table` does in a table."""
    cart = planning.sources.mapping.redis.cart + row["customer_id"]
    words = ["EVAL", CORRECT_CART, "1", cart, article["sku"], str(article["cart"]), str(article["ledger"])]
    safe = f"It changes only a cart that still holds {article['cart']}."
    return Step("statement", what, safe, {"store": "carts", "redis": words})


def write_entry(row: Row, planning: Planning) -> Iterator[Step]:
    """Write the ledger's entry of what the order has taken out."""
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
    """Correct what the cart holds too much, and have the order cleared by its message if it was not."""
    if row["surplus"]:
        yield from correct_cart(row, planning)
    if row["cleared_ms"] is None and (not row["surplus"] or row["is_consumed"]):
        yield from announce(row, planning)


def fire_timer(row: Row, planning: Planning) -> Iterator[Step]:
    """Let the deadline come now: the one that waits, or another one where none does."""
    mapping, timer = planning.sources.mapping, open_timer(row, planning)
    topic = mapping.topics.order_timeouts
    if timer:
        option = "--id" if timer.is_id else "--key"
        yield Step(
            "command",
            "Deliver the deadline now.",
            "A timer that has ended is refused; the order service times out only what is still placed.",
            {"command": f"tidewheel timer fire --topic {quote(topic)} {option} {quote(timer.name)}"},
        )
    else:
        yield from set_deadline(row, planning)


def set_deadline(row: Row, planning: Planning) -> Iterator[Step]:
    """Send the deadline of an order that waits for its payment, if none waits and none has come."""
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
    """Return until when an order may wait, in milliseconds since 1970."""
    due_ms: int | None = row["due_ms"] if row["due_ms"] is not None else row["timer_due_ms"]
    return due_ms


def is_overdue(row: Row, planning: Planning) -> bool:
    """Return whether an order's time was over when the audit looked."""
    due_ms = due_of(row)
    return due_ms is not None and planning.as_of_ms is not None and due_ms < planning.as_of_ms


def redrive(row: Row, planning: Planning) -> Iterator[Step]:
    """Give each dead letter back to its group."""
    for group in dead_groups(row, planning.sources.mapping):
        yield Step(
            "command",
            "Send the dead letter back to its group, once what made it fail is repaired: tidewheel dlq ls "
            "tells.",
            "A letter goes back once; its consumer knows the order by its id.",
            {"command": f"tidewheel dlq redrive {quote(group)} --key {quote(row['order_id'])} --yes"},
        )


def dead_groups(row: Row, mapping: Mapping) -> list[str]:
    """Return the groups that gave a message of the order up and have not acknowledged it since.

    The timeline does not say it: to give a message up is to acknowledge it, too.
    """
    groups = mapping.groups
    found = [
        (groups.order_created, "dead_letter_offset", "is_redelivered"),
        (groups.order_timeouts, "deadline_dead_offset", "is_deadline_redelivered"),
    ]
    return [group for group, dead, again in found if row[dead] is not None and not row[again]]


def open_timer(row: Row, planning: Planning) -> TimerName | None:
    """Return the name of the deadline that waits, as the log has it, else as the mapping says; None if no
    deadline waits.
    """
    offset = row.get("open_timer_offset")
    if offset is None:
        return None
    return planning.sources.timer_at(offset) or TimerName(timer_key(row, planning), is_id=False)


def timer_key(row: Row, planning: Planning) -> str:
    """Return the timer key of an order's deadline, as it was before, else as the mapping has it."""
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
