"""The names of all cases, in order of precedence. Does not import Spark."""

from __future__ import annotations

from typing import Final

ORDER_WITHOUT_MESSAGE: Final = "order-without-message"
MESSAGE_WITHOUT_ORDER: Final = "message-without-order"
OUTCOME_CONTRADICTS_DATABASE: Final = "outcome-contradicts-database"
HALF_UNRESOLVED: Final = "half-unresolved"
EFFECT_TWICE: Final = "effect-twice"
LEDGER_ENTRY_MISSING: Final = "ledger-entry-missing"
CART_NOT_CLEARED: Final = "cart-not-cleared"
PAID_BUT_TIMED_OUT: Final = "paid-but-timed-out"
TIMEOUT_NOT_FIRED: Final = "timeout-not-fired"
ARMED_LATE: Final = "armed-late"
FIRED_LATE: Final = "fired-late"
TIMED_OUT_LATE: Final = "timed-out-late"
CANCELLED_YET_DELIVERED: Final = "cancelled-yet-delivered"
DELIVERED_BEFORE_DUE: Final = "delivered-before-due"
NEVER_DELIVERED: Final = "never-delivered"
DEAD_LETTERED: Final = "dead-lettered"
FIFO_GAP: Final = "fifo-gap"
IN_FLIGHT: Final = "in-flight"
NOT_COVERED: Final = "not-covered"
BALANCED: Final = "balanced"

FINDINGS: Final = (
    ORDER_WITHOUT_MESSAGE, MESSAGE_WITHOUT_ORDER, OUTCOME_CONTRADICTS_DATABASE, HALF_UNRESOLVED, EFFECT_TWICE,
    LEDGER_ENTRY_MISSING, CART_NOT_CLEARED, PAID_BUT_TIMED_OUT, TIMEOUT_NOT_FIRED, ARMED_LATE, FIRED_LATE,
    TIMED_OUT_LATE, CANCELLED_YET_DELIVERED, DELIVERED_BEFORE_DUE, NEVER_DELIVERED, DEAD_LETTERED, FIFO_GAP,
)  # fmt: skip
"""Cases in which the order is faulty."""

CASES: Final = (*FINDINGS, IN_FLIGHT, NOT_COVERED, BALANCED)
"""Every order is in exactly one case: the first of these that holds."""

PUSHES_DO_NOT_SUM: Final = "pushes-do-not-sum"
CART_DIFFERENCE: Final = "cart-difference"
SEALED_WINDOW_CHANGED: Final = "sealed-window-changed"

OTHER_FINDINGS: Final = {
    PUSHES_DO_NOT_SUM: "push",
    CART_DIFFERENCE: "cart",
    SEALED_WINDOW_CHANGED: "window",
}
"""Findings that are not about orders -> the kind of object that they are about."""
