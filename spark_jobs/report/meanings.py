"""Explanations of the cases for the people responsible for the money: error, responsible party, repair.

The conditions of the cases are in `spark_jobs.cases`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_jobs.cases import names


class Meaning(NamedTuple):
    """Error (`what`), responsible party (`who`), and `repair`. The last two are empty if not applicable."""

    what: str
    who: str = ""
    repair: str = ""


MEANINGS: Final = {
    names.ORDER_WITHOUT_MESSAGE: Meaning(
        "The order is in the database, but no message announced it.",
        "The order service wrote the row outside of its message transaction, or the message was lost.",
        "Announce the order again; those who consume it take it in once only.",
    ),
    names.MESSAGE_WITHOUT_ORDER: Meaning(
        "An order was announced that the database does not have.",
        "The order service committed the message without its row, or the row was deleted.",
        "Look whether the row was lost; if it never was, cancel the order towards those who consumed it.",
    ),
    names.OUTCOME_CONTRADICTS_DATABASE: Meaning(
        "Database and messages say opposite things: one says it happened, the other says it did not.",
        "The order service ended a message transaction against what its database had decided.",
        "The database decides: send the message that it calls for, or have the row corrected by hand.",
    ),
    names.HALF_UNRESOLVED: Meaning(
        "A message waits for a decision that its producer does not make.",
        "Its producer is gone or does not answer when it is asked.",
        "Start its producer, or decide by hand: tidewheel txn resolve.",
    ),
    names.EFFECT_TWICE: Meaning(
        "Something was done twice: the cart lost an article too many, or one message was there twice.",
        "The consumer does not notice repeats, or the broker delivered one message as two.",
        "Put the article back; make the consumer idempotent.",
    ),
    names.LEDGER_ENTRY_MISSING: Meaning(
        "What was ordered was taken out of the cart, and the cart's ledger does not say so.",
        "The cart service, which changed the cart without its ledger; or an operator who deleted the entry.",
        "Write the missing entry; do not deliver the message again, which would take the articles out twice.",
    ),
    names.CART_NOT_CLEARED: Meaning(
        "The cart service has taken the order in, and what was ordered is still in the cart.",
        "The cart service acknowledged the message without doing its work.",
        "Take the ordered articles out of the cart; the ledger makes that safe to repeat.",
    ),
    names.PAID_BUT_TIMED_OUT: Meaning(
        "The order is paid, and was given up as not paid in time.",
        "The order service let the timeout win over a payment, or the other way round.",
        "Decide which of the two counts; pay the money back, or deliver.",
    ),
    names.TIMEOUT_NOT_FIRED: Meaning(
        "The order was not paid in time, and its deadline never came.",
        "The broker did not deliver a deadline that was due; or the deadline was never set, or cancelled.",
        "Send the deadline again; check that the broker runs and keeps up.",
    ),
    names.ARMED_LATE: Meaning(
        "The deadline was set after the time at which it should have come.",
        "The order service, which left the deadline's message undecided, or sent it late.",
        "Nothing for this order; find out why the order service was late, or have the broker ask it sooner.",
    ),
    names.FIRED_LATE: Meaning(
        "The deadline came too late: the articles were reserved for too long.",
        "The broker was down or could not keep up when the deadline was due.",
        "Nothing for this order; find out why the broker was late.",
    ),
    names.TIMED_OUT_LATE: Meaning(
        "The deadline came, and the order was given up much later.",
        "The order service was down, failed on the deadline or could not keep up.",
        "Nothing for this order; find out why the order service was late.",
    ),
    names.CANCELLED_YET_DELIVERED: Meaning(
        "The deadline had been cancelled and came all the same.",
        "The broker; this must never happen.",
        "Check the order by hand, and report it as a fault of the broker.",
    ),
    names.DELIVERED_BEFORE_DUE: Meaning(
        "The deadline came before its time: the customer had less time to pay than promised.",
        "The broker or its clock; this must never happen.",
        "Check the order by hand, and report it as a fault of the broker.",
    ),
    names.NEVER_DELIVERED: Meaning(
        "The order was announced, and the cart service has not taken it in for too long.",
        "The cart service does not run, does not keep up, or fails on this message again and again.",
        "Start it, or make it keep up; the message still waits.",
    ),
    names.DEAD_LETTERED: Meaning(
        "The consumer failed on the message so often that it was put aside.",
        "The consumer, or a producer that sent a message that it cannot read.",
        "Mend the cause, then send it again: tidewheel dlq redrive.",
    ),
    names.FIFO_GAP: Meaning(
        "Messages that belong in a row were taken out of turn: a later one before an earlier one.",
        "The consumer group, or an operator who moved it on.",
        "Look at the message that was passed over; have it processed.",
    ),
    names.IN_FLIGHT: Meaning("Something that is still to come decides it: look again in the next audit."),
    names.NOT_COVERED: Meaning(
        "It is older than what is left of the message log; no audit can judge it.",
        "",
        "Keep the log longer, or audit more often.",
    ),
    names.BALANCED: Meaning("Database, messages and cart agree."),
    names.PUSHES_DO_NOT_SUM: Meaning(
        "What was scheduled is not what was sent, is left, was cancelled or failed.",
        "The push service, or its ledger.",
        "Look at the pushes that are named; send what is missing once.",
    ),
    names.CART_DIFFERENCE: Meaning(
        "A cart holds something else than its ledger says, and no order explains it.",
        "The cart service, or an operator who wrote to the carts by hand.",
        "Look which of the two is right, and correct the other.",
    ),
    names.SEALED_WINDOW_CHANGED: Meaning(
        "Books that had been closed were changed afterwards.",
        "A service or an operator that changed rows of the past.",
        "Find out who changed what is named, and why; then seal anew.",
    ),
}
