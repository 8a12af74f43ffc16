"""Cases of the cart of an order's customer: not cleared, cleared twice, or without a ledger entry."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import (
    has_row,
    held_too_little,
    held_too_much,
    is_committed,
    is_consumed,
    says,
)


def effect_twice() -> Column:
    """Something happened twice: the cart holds less of an article than its ledger says, and this is its
    customer's newest order of it; or the order is in two customers' ledgers; or its entries in a ledger took
    out more than was ordered; or a half was committed twice; or a deadline delivered twice.

    Wrong: the cart service, which is not idempotent; for halves and deadlines the broker.
    Repair: put the missing articles back into the cart; report the broker's fault.
    """
    lost = _held(F.get(held_too_little(), F.lit(0)))
    return F.coalesce(
        F.when(F.size(F.coalesce(held_too_little(), F.array())) > 0, lost),
        F.when(
            F.col("cleared_customer_first") != F.col("cleared_customer_last"),
            says(
                "It is in the ledgers of customers %s and %s.",
                "cleared_customer_first",
                "cleared_customer_last",
            ),
        ),
        F.when((F.size(F.coalesce("overtaken", F.array())) > 0) & has_row(), _overtaken()),
        F.when(
            F.col("twice_committed_offset").isNotNull(),
            says("The half at log offset %d has two commits.", "twice_committed_offset"),
        ),
        F.when(
            F.col("twice_delivered_offset").isNotNull(),
            says("The timer at log offset %d was delivered twice.", "twice_delivered_offset"),
        ),
    )


def _overtaken() -> Column:
    article, customer = F.get("overtaken", F.lit(0)), F.col("cleared_customer_first")
    once = says(
        "Its entry in the ledger of customer %s took out %d of article %s; it has ordered %d.",
        customer,
        article.taken,
        article.sku,
        article.ordered,
    )
    often = says(
        "The ledger of customer %s has %d entries of the order for article %s, which took out %d; it has "
        "ordered %d.",
        customer,
        article.entries,
        article.sku,
        article.taken,
        article.ordered,
    )
    return F.when(article.entries == 1, once).otherwise(often)


def ledger_entry_missing() -> Column:
    """The carts' group has acknowledged order-created and the cart lacks what was ordered, but the ledger has
    no entry of the order.

    Wrong: the cart service, which changed the cart without its ledger; or an operator, who deleted the entry.
    Repair: write the entry; delivered again the message would take the articles out a second time.
    """
    article = F.get("unwritten", F.lit(0))
    why = says(
        "Its message at log offset %d was consumed and %d of article %s taken out of customer %s's cart; "
        "the ledger has no entry of the order.",
        F.col("committed_offset"),
        article.quantity,
        article.sku,
        F.col("customer_id"),
    )
    return F.when(_is_unwritten(), why)


def _is_unwritten() -> Column:
    return F.size(F.coalesce("unwritten", F.array())) > 0


def cart_not_cleared() -> Column:
    """The carts' group has acknowledged order-created, and neither the cart nor its ledger shows an effect;
    or the cart holds more of an article than its ledger says, and this is its customer's newest order of it;
    or the order's entry is in another customer's ledger.

    Wrong: the cart service, which acknowledged before the effect, or lost it, or took another's cart.
    Repair: deliver order-created to the cart service again; an entry that is there makes it do nothing. An
    operator has to put back what was taken out of another's cart.
    """
    unledgered = says(
        "Its message at log offset %d was consumed, and the ledger of customer %s has no entry of the order.",
        "committed_offset",
        "customer_id",
    )
    has_no_entry = (F.col("has_carts") == 1) & F.col("cleared_ms").isNull() & ~_is_unwritten()
    is_unledgered = has_no_entry & is_committed() & is_consumed()
    is_held = F.size(F.coalesce(held_too_much(), F.array())) > 0
    others = says(
        "Its entry is in the ledger of customer %s; the order is of customer %s.",
        "cleared_customer_first",
        "customer_id",
    )
    is_one = F.col("cleared_customer_first") == F.col("cleared_customer_last")
    is_others = has_row() & is_one & (F.col("cleared_customer_first") != F.col("customer_id"))
    return (
        F.when(is_unledgered, unledgered)
        .when(is_held, _held(F.get(held_too_much(), F.lit(0))))
        .when(is_others, others)
    )


def _held(article: Column) -> Column:
    return says(
        "The cart of customer %s holds %d of article %s, by its ledger it should hold %d.",
        F.col("customer_id"),
        article.cart,
        article.sku,
        article.ledger,
    )
