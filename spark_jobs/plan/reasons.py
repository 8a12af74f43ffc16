"""Reasons that a plan proposes no repair of some findings."""

from __future__ import annotations

from typing import Final

from spark_jobs.cases import names

UNSAFE: Final = {
    names.MESSAGE_WITHOUT_ORDER: "Whether the customer ordered is not in any store: either the row is to be "
    "restored from the message, or what the message has done is to be undone.",
    names.OUTCOME_CONTRADICTS_DATABASE: "An operator has to decide what has happened: the row and the log "
    "tell it differently, and neither has to be the right one.",
    names.EFFECT_TWICE: "An operator has to decide which of the two effects is to stand; that there are two "
    "is the broker's or a consumer's fault: tidewheel store verify.",
    names.PAID_BUT_TIMED_OUT: "Either the money goes back or the order stands: both promises were made.",
    names.ARMED_LATE: "It has happened, late; nothing is left to do. Look why the order service set it so "
    "late; if it had stopped, a shorter check-back of the topic bounds that (tidewheel txn policy).",
    names.FIRED_LATE: "It has happened, late; nothing is left to do. Look why the broker was late.",
    names.TIMED_OUT_LATE: "It has happened, late; nothing is left to do. Look why the order service acted so "
    "late (tidewheel group show); the broker had delivered the deadline.",
    names.CANCELLED_YET_DELIVERED: "The consumer has seen a deadline that was cancelled. If the row "
    "is right, nothing is left to do; the broker's part is a fault to be reported.",
    names.DELIVERED_BEFORE_DUE: "If it was timed out too early, an operator has to decide whether it stands.",
    names.NEVER_DELIVERED: "The message still waits for its consumer: start it (tidewheel group "
    "lag). Sending it again would only add a second one.",
    names.FIFO_GAP: "An earlier message of its message group is not acknowledged: look at its consumer "
    "(tidewheel group show) before anything behind it is trusted.",
    names.CART_DIFFERENCE: "No order explains it, so either the cart or its ledger may be the wrong one.",
    names.PUSHES_DO_NOT_SUM: "A text that was or was not shown to a customer cannot be taken back or proved.",
    names.SEALED_WINDOW_CHANGED: "An operator has to find out why closed books were changed; then: tidewheel "
    "audit seal --accept-changes.",
}
"""Case -> the reason that it has no safe repair."""

UNSAFE_ELSE: Final = "No repair of this is known that could be repeated safely."
