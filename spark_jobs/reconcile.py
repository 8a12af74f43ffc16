"""Every order in exactly one case. A case is a function that adds a column of its own name: why, or null.

An order exists when the database has its row or the log a committed `order-created` message of it. Cases are
tried in this order; the first that holds is the order's case, and the others that hold stay as `also`:

1. order-without-message   the row is there, the message never was
2. message-without-order   the message is there, the row is not
3. paid-but-timed-out      both a payment and a timeout are in the row
4. cart-not-cleared        the message was consumed and the ordered lines are still in the cart
5. in-flight               something that is still to come decides it
6. not-covered             the part of the log that would tell was deleted; nobody can judge the order
7. balanced                nothing of the above

The stores are not read at one instant while a shop runs. They are read in the order databases, log, carts;
`books_offset` is where the log ended just before. So a message newer than that may be too new for the
database, and is in flight; every other difference is real.

A row of the books (see `books`) is one order:

    has_row, customer_id, status, total_pence, placed_ms, due_ms, paid_ms, ...     from the database
    half_offset, committed_offset, ...                                             see `facts.order_facts`
    cleared_ms    when the cart's ledger took the order in
    surplus       articles of which the cart holds more than its ledger: sku, cart, ledger
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs import shop
from spark_jobs.carts import ORDER

ORDER_WITHOUT_MESSAGE: Final = "order-without-message"
MESSAGE_WITHOUT_ORDER: Final = "message-without-order"
PAID_BUT_TIMED_OUT: Final = "paid-but-timed-out"
CART_NOT_CLEARED: Final = "cart-not-cleared"
IN_FLIGHT: Final = "in-flight"
NOT_COVERED: Final = "not-covered"
BALANCED: Final = "balanced"

FINDINGS: Final = (ORDER_WITHOUT_MESSAGE, MESSAGE_WITHOUT_ORDER, PAID_BUT_TIMED_OUT, CART_NOT_CLEARED)
CASES: Final = (*FINDINGS, IN_FLIGHT, NOT_COVERED, BALANCED)

GRACE_MS: Final = 60_000
"""How far the clocks of a shop and its broker may be apart."""

Case = Callable[[DataFrame], DataFrame]


def order_without_message(books: DataFrame) -> DataFrame:
    """The database has the order, the log no committed `order-created`, and no half of it is still open."""
    why = F.concat(
        F.lit("The database has the order; the log has no committed order-created message of it"),
        F.when(
            F.col("half_offset").isNotNull(), F.format_string(", only a half at log offset %d", "half_offset")
        ).otherwise(""),
        F.lit("."),
    )
    has_none = _has_row() & ~_is_committed() & ~_has_open_half()
    return books.withColumn(ORDER_WITHOUT_MESSAGE, F.when(has_none & ~_is_older_than_the_log(), why))


def message_without_order(books: DataFrame) -> DataFrame:
    """The log has a committed `order-created` older than the reading of the database, which has no row."""
    why = F.format_string(
        "Its order-created message is committed at log offset %d; the database has no such order.",
        "committed_offset",
    )
    return books.withColumn(
        MESSAGE_WITHOUT_ORDER, F.when(~_has_row() & _is_committed() & ~_is_too_new(), why)
    )


def paid_but_timed_out(books: DataFrame) -> DataFrame:
    """The row says both that the order was paid and that it timed out; only one may win."""
    timed_out = (F.col("status") == shop.TIMED_OUT) | F.col("timed_out_ms").isNotNull()
    why = F.format_string("It was paid and has timed out; its status is %s.", "status")
    return books.withColumn(PAID_BUT_TIMED_OUT, F.when(F.col("paid_ms").isNotNull() & timed_out, why))


def cart_not_cleared(books: DataFrame) -> DataFrame:
    """The message was acknowledged (or given up as a dead letter) and the ledger has no entry of the order;
    or the customer's cart holds more than its ledger says, and this is their newest order of that article."""
    consumed = _consumed_offset()
    unledgered = F.format_string(
        "Its message was consumed (log offset %d), and the ledger of customer %s has no entry of the order.",
        consumed,
        "customer_id",
    )
    first = F.element_at("surplus", 1)
    held = F.format_string(
        "The cart of customer %s holds %d of article %s, by its ledger it should hold %d.",
        "customer_id",
        first.cart,
        first.sku,
        first.ledger,
    )
    is_unledgered = _is_committed() & F.col("cleared_ms").isNull() & consumed.isNotNull()
    return books.withColumn(
        CART_NOT_CLEARED, F.when(is_unledgered, unledgered).when(F.col("surplus").isNotNull(), held)
    )


def in_flight(books: DataFrame) -> DataFrame:
    """Undecided: unpaid before its deadline fires, a half without an outcome, a message not yet consumed, or
    a message newer than the reading of the database."""
    is_placed = F.col("status") == shop.PLACED
    fired = F.format_string(
        "A deadline of it fired (log offset %d), and it is neither paid nor timed out nor cancelled yet.",
        "delivered_offset",
    )
    unconsumed = _is_committed() & F.col("cleared_ms").isNull() & _consumed_offset().isNull()
    why = (
        F.when(~_has_row() & _is_too_new(), "Its message is newer than the reading of the database.")
        .when(~_is_committed() & _has_open_half(), "Its half message has no outcome yet.")
        .when(is_placed & F.col("delivered_offset").isNotNull(), fired)
        .when(is_placed, "It is neither paid nor timed out nor cancelled yet.")
        .when(unconsumed, "Its order-created message is not acknowledged yet.")
    )
    return books.withColumn(IN_FLIGHT, why)


def not_covered(books: DataFrame) -> DataFrame:
    """The order is older than what is left of the log, so whether its message was there cannot be said."""
    why = F.lit("It was placed before what is left of the log; whether its message was there cannot be said.")
    return books.withColumn(
        NOT_COVERED, F.when(_has_row() & ~_is_committed() & _is_older_than_the_log(), why)
    )


ALL_CASES: Final[tuple[Case, ...]] = (
    order_without_message,
    message_without_order,
    paid_but_timed_out,
    cart_not_cleared,
    in_flight,
    not_covered,
)


def verdicts(books: DataFrame) -> DataFrame:
    """The books with each order's `case`, `why` it is that, and which other cases hold `also`."""
    judged = reduce(lambda frame, case: case(frame), ALL_CASES, books)
    names = [name for name in CASES if name != BALANCED]
    holding = F.array_compact(F.array(*(F.when(F.col(name).isNotNull(), F.lit(name)) for name in names)))
    return (
        judged.withColumn("holding", holding)
        .withColumn("case", F.coalesce(F.get("holding", 0), F.lit(BALANCED)))
        .withColumn("why", F.coalesce(*names, F.lit("Database, messages and cart agree.")))
        .withColumn("also", F.slice("holding", 2, len(names)))
        .drop("holding", *names)
    )


def books(
    orders: DataFrame,
    facts: DataFrame,
    ledger: DataFrame,
    surpluses: DataFrame,
    books_offset: int,
    covered_from_ms: int,
) -> DataFrame:
    """One row per order with all that the three sides say of it.

    `covered_from_ms`: when the first record that is left of the log was stored; 0 if nothing was deleted.
    """
    cleared = ledger.filter(F.col("entry") == ORDER).groupBy(F.col("entry_id").alias("order_id"))
    return (
        orders.withColumn("has_row", F.lit(True))
        .join(facts, "order_id", "full_outer")
        .withColumn("has_row", F.coalesce("has_row", F.lit(False)))
        .filter(_has_row() | _is_committed())
        .join(cleared.agg(F.min("at_ms").alias("cleared_ms")), "order_id", "left")
        .join(surpluses, "order_id", "left")
        .withColumn("customer_id", F.coalesce("customer_id", F.col("message.customer_id")))
        .withColumn("has_open_half", F.coalesce("has_open_half", F.lit(False)))
        .withColumn("books_offset", F.lit(books_offset))
        .withColumn("covered_from_ms", F.lit(covered_from_ms))
    )


def attributed(
    differences: DataFrame, orders: DataFrame, order_lines: DataFrame, events: DataFrame
) -> DataFrame:
    """The differences (see `carts`) with `order_id`: of a surplus the customer's newest order of the article,
    else null."""
    rows = orders.join(order_lines, "order_id").select("order_id", "customer_id", "sku", "placed_ms")
    messages = events.filter((F.col("topic") == shop.ORDER_CREATED) & F.col("message").isNotNull()).select(
        "order_id", "message.customer_id", F.explode("message.lines.sku").alias("sku"), "message.placed_ms"
    )
    newest = Window.partitionBy("customer_id", "sku").orderBy(
        F.desc_nulls_last("placed_ms"), F.desc("order_id")
    )
    holders = (
        rows.unionByName(messages)
        .join(differences.filter(F.col("cart") > F.col("ledger")), ["customer_id", "sku"], "left_semi")
        .withColumn("place", F.row_number().over(newest))
        .filter(F.col("place") == 1)
        .select("customer_id", "sku", "order_id")
    )
    return differences.join(holders, ["customer_id", "sku"], "left")


def surpluses(attributed_differences: DataFrame) -> DataFrame:
    """Per order the articles that it should have taken out of its customer's cart: order_id, surplus."""
    article = F.struct("sku", "cart", "ledger")
    return (
        attributed_differences.filter(F.col("order_id").isNotNull())
        .groupBy("order_id")
        .agg(F.sort_array(F.collect_list(article)).alias("surplus"))
    )


def _has_row() -> Column:
    return F.col("has_row")


def _is_committed() -> Column:
    return F.col("committed_offset").isNotNull()


def _consumed_offset() -> Column:
    return F.coalesce("ack_offset", "dead_letter_offset")


def _is_too_new() -> Column:
    return F.col("committed_offset") >= F.col("books_offset")


def _is_older_than_the_log() -> Column:
    covered_from_ms = F.col("covered_from_ms")
    return (covered_from_ms > 0) & (F.col("placed_ms") < covered_from_ms + GRACE_MS)


def _has_open_half() -> Column:
    return F.col("has_open_half")
