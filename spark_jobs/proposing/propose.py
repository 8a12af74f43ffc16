"""Proposal of a mapping for the tables of a database and the topics of a log, with a reason for each name.

A pure function from the data read from both (`facts`) to names, reasons and doubts (`proposal`).

    orders      the table (`orders`), its columns (`columns`, `times`), the meanings of its statuses
                (`statuses`), the zone of its times (`local_times`)
    topics      the roles of topics, the groups that act on them (`topics`), the fields of bodies (`bodies`)
    articles    order lines, carts and their ledger
    pushes      the table and topic of delayed messages that are not of orders

Evidence from rows and messages usually weighs more than a name. Exceptions: the word of a status prevails
over messages (`statuses`), the total needs a column with a fitting name, and the customer one with a fitting
name or foreign key (`columns`).

Limitation: the proposal is based on a sample and on words of a dozen languages. Hence each name has a reason
that the user can check, and an audit follows at once, in which a wrong name causes a finding for nearly every
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from spark_jobs.errors import NothingProposed
from spark_jobs.proposing.agreement import Share, rows_by
from spark_jobs.proposing.articles import choose_carts, find_lines, lines_part
from spark_jobs.proposing.bodies import choose_bodies
from spark_jobs.proposing.columns import choose_columns
from spark_jobs.proposing.facts import LogFacts, Table, Topic
from spark_jobs.proposing.known import KnownOrders
from spark_jobs.proposing.local_times import in_utc
from spark_jobs.proposing.orders import FoundOrders, find_orders
from spark_jobs.proposing.proposal import Choice, Doubt, Part, Proposal
from spark_jobs.proposing.pushes import choose_pushes
from spark_jobs.proposing.statuses import choose_statuses, status_column
from spark_jobs.proposing.times import choose_times
from spark_jobs.proposing.topics import OrderTopics, choose_group, choose_topics, is_plain

_ACTED_ON: Final = {"order_created": "the carts, say", "order_timeouts": "what times orders out"}
_TOPICS: Final = ("order_created", "order_timeouts", "order_paid", "order_cancelled")
_JUDGED_AS_TRANSACTIONS: Final = ("order_created", "order_paid", "order_cancelled")
_LACKING: Final = {
    "order_timeouts": "of deadlines (delayed messages with the orders' keys)",
    "order_paid": "of payments",
    "order_cancelled": "of cancellations",
}


def propose(tables: Sequence[Table], log: LogFacts) -> Proposal:
    """Return the proposed mapping.

    Raise `NothingProposed` without messages or tables, or if no table has the keys of messages and a status.
    """
    _refuse_nothing(tables, log)
    found = find_orders(tables, log.topics)
    rows, status = rows_by(found.table, found.key), status_column(found.table, found.key)
    if not status:
        raise NothingProposed(_no_status(found))
    topics = choose_topics(found.topics, rows, status)
    statuses = choose_statuses(found.table, status, rows, topics, log.last_ms)
    meanings = {one.value: one.meaning for one in statuses.statuses}
    orders, zone = in_utc(KnownOrders(found, rows, topics, status, meanings))
    columns = _columns(orders)
    named = {one.name: one.value for one in columns.choices if isinstance(one.value, str)}
    others, has_carts, has_pushes = _others(tables, log, orders, named)
    bodies = choose_bodies(topics, orders.rows, found.key, named)
    part = Part.joined((_of_orders(orders), zone, columns, statuses, others, _of_topics(topics), bodies))
    sections = dict.fromkeys(one.section for one in part.choices)
    ordered = tuple(one for section in sections for one in part.choices if one.section == section)
    return Proposal(ordered, part.doubts, part.statuses, has_carts, has_pushes)


def _refuse_nothing(tables: Sequence[Table], log: LogFacts) -> None:
    if not any(topic.messages or topic.without_key for topic in log.topics):
        raise NothingProposed(
            "The log holds no message yet. Let your service send some (docs/transactions.md), and try again."
        )
    if not tables:
        raise NothingProposed("The database has no tables. Correct --db: the orders are in another one.")


def _columns(orders: KnownOrders) -> Part:
    columns = choose_columns(orders)
    values = (one.value for one in columns.choices if isinstance(one.value, str))
    return Part.joined((columns, choose_times(orders, {orders.found.key, orders.status, *values})))


def _others(
    tables: Sequence[Table], log: LogFacts, orders: KnownOrders, named: Mapping[str, str]
) -> tuple[Part, bool, bool]:
    """Return the choices for tables other than the orders, whether there are carts, and whether pushes."""
    lines = find_lines(tables, orders.found)
    pushes = choose_pushes(tables, log.topics, orders.found)
    used = [lines.table.name] if lines else []
    used += [str(one.value) for one in pushes.choices if (one.section, one.name) == ("pushes", "table")]
    carts = choose_carts(tables, orders.found, named.get("customer_id", ""), used)
    has_pushes = bool(pushes.choices)
    if not has_pushes:
        pushes = Part((Choice("topics", "pushes", "", "no other table has the keys of delayed messages"),))
    return Part.joined((lines_part(lines), carts, pushes)), bool(carts.choices), has_pushes


def _of_orders(known: KnownOrders) -> Part:
    orders, status = known.found, known.status
    column = orders.table.column(orders.key)
    why = "no two rows have the same" if not column.is_unique else "the database keeps it unique"
    counts = orders.table.column(status).counts or {}
    doubts = [
        Doubt(
            f"Table {name} holds such keys as well. If the orders are there, write it as table in [orders]."
        )
        for name in orders.also
    ]
    return Part(
        (
            Choice("orders", "table", orders.table.name, orders.why),
            Choice("orders", "order_id", orders.key, f"the messages' keys; {why}"),
            Choice("orders", "status", status, f"{len(counts)} values in {sum(counts.values()):,} rows"),
        ),
        tuple(doubts),
    )


def _no_status(orders: FoundOrders) -> str:
    columns = ", ".join(one.name for one in orders.table.columns)
    return (
        f"Table {orders.table.name} looks like orders ({orders.why}), but no column looks like a status "
        f"(there are {columns}). If times say it, make a view with one: CASE WHEN paid_at IS NOT NULL THEN "
        "'paid' ... ELSE 'placed' END, and try again."
    )


def _of_topics(topics: OrderTopics) -> Part:
    parts = [_of_topic(ours, topics) for ours in _TOPICS]
    for ours, what in _ACTED_ON.items():
        topic = topics.topic(ours)
        if topic is not None:
            parts.append(_of_group(ours, what, topic))
    deadlines = topics.topic("order_timeouts")
    if deadlines is not None:
        parts.append(_of_timer_keys(deadlines))
    return Part.joined(parts)


def _of_topic(ours: str, topics: OrderTopics) -> Part:
    topic = topics.topic(ours)
    if topic is None:
        return _lacking(ours, topics)
    doubts = []
    if topic.without_key:
        doubts.append(
            Doubt(
                f"{topic.without_key:,} messages of {topic.name} have no key: nothing says of which order "
                "they are. Send them with the order's id as their first key."
            )
        )
    if is_plain(topic) and ours in _JUDGED_AS_TRANSACTIONS:
        is_needed = ours == "order_created"
        doubts.append(Doubt(_plain(ours, topic), is_blocking=is_needed))
        if not is_needed:
            return Part((Choice("topics", ours, "", f"{topic.name} has no transactions"),), tuple(doubts))
    return Part((Choice("topics", ours, topic.name, topics.chosen[ours].why),), tuple(doubts))


def _plain(ours: str, topic: Topic) -> str:
    """Return the text of the doubt about messages sent without a transaction."""
    effect = (
        "one without its order is not found, and an order whose message still waits to be sent is "
        "order-without-message. Write the topic into the file to have it so"
        if ours == "order_created"
        else "they are not judged"
    )
    return (
        f"{topic.name} has {topic.plain:,} messages that were sent without a transaction, as an outbox sends "
        f"them, and not as the audit expects it (docs/transactions.md): {effect}."
    )


def _lacking(ours: str, topics: OrderTopics) -> Part:
    names = " or ".join(one.name for one in topics.unsure)
    unsure = f" (it may be {names})" if names and ours != "order_timeouts" else ""
    return Part(
        (Choice("topics", ours, "", "none was found: no order is judged by one"),),
        (
            Doubt(
                f"Not found: a topic {_LACKING[ours]}{unsure}. No order is judged by one. If there is one, "
                f'write {ours} = "..." in [topics].'
            ),
        ),
    )


def _of_group(ours: str, what: str, topic: Topic) -> Part:
    group, why, others = choose_group(topic)
    if not group:
        return Part(
            doubts=(
                Doubt(
                    f"Not found: a group that acknowledges messages of {topic.name}. Write the one that acts "
                    f'on them ({what}) as {ours} = "..." in [groups].'
                ),
            )
        )
    several = Doubt(
        f"Groups {', '.join(others)} acknowledge messages of {topic.name} as well as {group}. If another one "
        f'acts on them ({what}), write {ours} = "..." in [groups].'
    )
    return Part((Choice("groups", ours, group, why),), (several,) if others else ())


def _of_timer_keys(deadlines: Topic) -> Part:
    """Return the prefix of the deadlines' timer keys, or a doubt if most have no common one.

    The part is empty if the deadlines have no timer keys.
    """
    of = sum(deadlines.timer_keys.values())
    prefix = max(deadlines.timer_keys, key=lambda one: deadlines.timer_keys[one], default=None)
    begins = Share(deadlines.timer_keys.get(prefix, 0), of)
    if prefix is not None and begins.is_most:
        why = f"the timer keys of {begins} deadlines are it and the order's id"
        return Part((Choice("timers", "order_timeouts", prefix, why),))
    if not of:
        return Part()
    return Part(
        doubts=(
            Doubt(
                f"The timer keys of {deadlines.name} are not one word and the order's id. A plan that sets a "
                "deadline again names it by such a key: look at its steps before you take them, or make the "
                "keys so and write the word as order_timeouts in [timers]."
            ),
        )
    )
