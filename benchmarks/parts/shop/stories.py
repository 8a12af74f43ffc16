"""The possible histories of an order: its records, its row and its cart, and the case of the faulty ones.

A story is a sequence of steps: the kind of the record, and its store time in milliseconds after one of the
order's moments. A kind names the record's template (`templates.py`), the slot that keeps its offset in the
log (`out`), and the slots of its half and its timer. Sound stories have a share of all orders; planted ones
have the case expected of the audit. A young one is near the end of the log, where an unacknowledged message
is not a finding yet; a partner is the story of the same customer's next order.

    moment   time
    placed   the order is placed
    at       two to twenty-two seconds later: it is paid, cancelled, or its deadline is moved
    due      its deadline, 30 s after it was placed
    moved    its deadline after a move
    push     its push is due, if it has one
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from services.shop.tables import OrderStatus, PushStatus

ROW_LAG_MS: Final = 20
"""Delay from the delivery of a deadline to the row's time-out."""


@dataclass(frozen=True)
class Kind:
    """A kind of record: its template, the slots that it sets and refers to, and its acknowledgement."""

    template: str
    out: int | None = None
    half: int | None = None
    timer: int | None = None
    acked_by: str = ""


CREATED_HALF, DEADLINE_HALF, PAID_HALF, CANCELLED_HALF, TIMER, MOVED_TIMER, PUSH_TIMER = range(7)
SLOT_COUNT: Final = 7

KINDS: Final = {
    "half created": Kind("half created", out=CREATED_HALF),
    "half deadline": Kind("half deadline", out=DEADLINE_HALF),
    "half paid": Kind("half paid", out=PAID_HALF),
    "half cancelled": Kind("half cancelled", out=CANCELLED_HALF),
    "check": Kind("check", half=CREATED_HALF),
    "rollback created": Kind("rollback created", half=CREATED_HALF),
    "rollback deadline": Kind("rollback deadline", half=DEADLINE_HALF),
    "rollback paid": Kind("rollback paid", half=PAID_HALF),
    "created": Kind("created", half=CREATED_HALF, acked_by="acked created"),
    "created, ignored": Kind("created", half=CREATED_HALF),
    "timer": Kind("timer", out=TIMER, half=DEADLINE_HALF),
    "paid": Kind("paid", half=PAID_HALF, timer=TIMER),
    "paid unarmed": Kind("paid unarmed", half=PAID_HALF),
    "cancelled": Kind("cancelled", half=CANCELLED_HALF, timer=TIMER),
    "delivered": Kind("delivered", timer=TIMER, acked_by="acked deadline"),
    "fired": Kind("fired", timer=TIMER, acked_by="acked deadline"),
    "moved": Kind("moved", out=MOVED_TIMER, timer=TIMER),
    "delivered moved": Kind("delivered moved", timer=MOVED_TIMER, acked_by="acked deadline"),
    "dead created": Kind("dead created"),
    "dead created, redriven": Kind("dead created", acked_by="acked letter"),
    "dead deadline": Kind("dead deadline"),
    "redriven": Kind("redriven", acked_by="acked created"),
    "push timer": Kind("push timer", out=PUSH_TIMER),
    "push delivered": Kind("push delivered", timer=PUSH_TIMER, acked_by="acked push"),
    "push ignored": Kind("push delivered", timer=PUSH_TIMER),
    "push cancel": Kind("push cancel", timer=PUSH_TIMER),
    "acked created": Kind("acked created"),
    "acked deadline": Kind("acked deadline"),
    "acked letter": Kind("acked letter"),
    "acked push": Kind("acked push"),
}

Step = tuple[str, str, int]
"""Kind, moment, milliseconds after it."""


@dataclass(frozen=True)
class Row:
    """An order's row: its status, and the presence of its times."""

    status: str
    has_paid: bool = False
    has_timed_out: bool = False
    has_cancelled: bool = False
    timed_out_after_ms: int = 0


@dataclass(frozen=True)
class Story:
    """The steps of an order. `cart`: cleared, kept (not cleared), surplus, deficit, two ledgers, or no
    entry (cleared, without a ledger entry).
    """

    steps: tuple[Step, ...]
    row: Row | None
    cart: str = "cleared"
    share: float = 0.0
    case: str = ""
    is_grouped: bool = False
    is_young: bool = False
    partner: Story | None = None


@dataclass(frozen=True)
class PushStory:
    """The records of a push, its row's status, and whether that is a finding.

    A push with a schedule is the schedule's only push, so an unknown status makes the schedule a finding too.
    """

    steps: tuple[Step, ...]
    status: str
    share: float = 0.0
    is_finding: bool = False
    has_schedule: bool = False


_HALVES: Final[tuple[Step, ...]] = (("half created", "placed", 2), ("half deadline", "placed", 3))
_ARMED: Final[Step] = ("timer", "placed", 9)
_PLACED: Final[tuple[Step, ...]] = (*_HALVES, ("created", "placed", 8), _ARMED)
_REFUSED: Final[tuple[Step, ...]] = (
    *_HALVES, ("rollback created", "placed", 8), ("rollback deadline", "placed", 9),
)  # fmt: skip
_PAID_HALF: Final[Step] = ("half paid", "at", 1)
_PAYMENT: Final[tuple[Step, ...]] = (_PAID_HALF, ("paid", "at", 6))
_DELIVERED: Final[Step] = ("delivered", "due", 1)

_PLACED_ROW: Final = Row(OrderStatus.PLACED)
_PAID_ROW: Final = Row(OrderStatus.PAID, has_paid=True)
_LATE_ROW: Final = Row(OrderStatus.TIMED_OUT, has_timed_out=True)
_OFF_ROW: Final = Row(OrderStatus.CANCELLED, has_cancelled=True)

SOUND: Final = {
    "paid": Story((*_PLACED, *_PAYMENT), _PAID_ROW, share=0.69),
    "paid, in a group": Story((*_PLACED, *_PAYMENT), _PAID_ROW, share=0.09, is_grouped=True),
    "timed out": Story((*_PLACED, _DELIVERED), _LATE_ROW, share=0.12),
    "cancelled": Story(
        (*_PLACED, ("half cancelled", "at", 1), ("cancelled", "at", 6)), _OFF_ROW, share=0.05
    ),
    "asked": Story(
        (*_HALVES, ("check", "placed", 6_002), ("created", "placed", 6_100), ("timer", "placed", 6_101),
         _DELIVERED),
        _LATE_ROW,
        share=0.01,
    ),
    "refused": Story(_REFUSED, None, cart="kept", share=0.01),
    "fired": Story((*_PLACED, ("fired", "at", 1)), _LATE_ROW, share=0.01),
    "moved": Story((*_PLACED, ("moved", "at", 1), ("delivered moved", "moved", 1)), _LATE_ROW, share=0.01),
    "redriven": Story(
        (*_PLACED, ("dead created, redriven", "placed", 40_000), ("redriven", "placed", 50_000), *_PAYMENT),
        _PAID_ROW,
        share=0.01,
    ),
}  # fmt: skip


def _planted(case: str, *stories: Story) -> list[Story]:
    return [replace(one, case=case) for one in stories]


PLANTED: Final[dict[str, list[Story]]] = {
    "order-without-message": _planted(
        "order-without-message", Story((), _LATE_ROW, "kept"), Story((), _PAID_ROW, "kept")
    ),
    "message-without-order": _planted("message-without-order", Story((*_PLACED, _DELIVERED), None)),
    "outcome-contradicts-database": _planted(
        "outcome-contradicts-database",
        Story(_REFUSED, _LATE_ROW, "kept"),
        Story((*_PLACED, _PAID_HALF, ("rollback paid", "at", 6), _DELIVERED), _PAID_ROW),
        Story((*_PLACED, _DELIVERED), _PAID_ROW),
        Story((*_PLACED, *_PAYMENT), _PLACED_ROW),
        Story((*_PLACED, ("half cancelled", "at", 1), ("cancelled", "at", 6)), _PLACED_ROW),
        Story((*_PLACED, _DELIVERED), _OFF_ROW),
    ),
    "half-unresolved": _planted(
        "half-unresolved",
        Story((*_HALVES, ("check", "placed", 6_002)), None, "kept"),
        Story((*_HALVES, ("check", "placed", 6_002)), _PLACED_ROW, "kept"),
        Story((*_PLACED, _PAID_HALF, _DELIVERED), _LATE_ROW),
        Story((*_HALVES, ("created", "placed", 8), _PAID_HALF, ("paid unarmed", "at", 6)), _PAID_ROW),
        Story((*_PLACED, *_PAYMENT, ("half cancelled", "at", 3_000)), _PAID_ROW),
    ),
    "effect-twice": _planted(
        "effect-twice",
        Story((*_PLACED, *_PAYMENT), _PAID_ROW, "deficit"),
        Story((*_PLACED, *_PAYMENT), _PAID_ROW, "two ledgers"),
        Story((*_PLACED, ("created", "placed", 500), *_PAYMENT), _PAID_ROW),
        Story((*_PLACED, _DELIVERED, ("delivered", "due", 500)), _LATE_ROW),
    ),
    "ledger-entry-missing": _planted(
        "ledger-entry-missing", Story((*_PLACED, *_PAYMENT), _PAID_ROW, "no entry")
    ),
    "cart-not-cleared": _planted(
        "cart-not-cleared",
        Story((*_PLACED, *_PAYMENT), _PAID_ROW, "kept"),
        Story((*_PLACED, *_PAYMENT), _PAID_ROW, "surplus"),
    ),
    "paid-but-timed-out": _planted(
        "paid-but-timed-out",
        Story((*_PLACED, *_PAYMENT), Row(OrderStatus.PAID, has_paid=True, has_timed_out=True)),
        Story((*_PLACED, *_PAYMENT), Row(OrderStatus.TIMED_OUT, has_paid=True, has_timed_out=True)),
    ),
    "timeout-not-fired": _planted("timeout-not-fired", Story(_PLACED, _PLACED_ROW)),
    "armed-late": _planted(
        "armed-late",
        Story(
            (*_HALVES, ("created", "placed", 8), ("timer", "due", 65_000), ("delivered", "due", 65_001)),
            Row(OrderStatus.TIMED_OUT, has_timed_out=True, timed_out_after_ms=65_001),
        ),
        Story(
            (
                ("half created", "placed", 2),
                ("created", "placed", 8),
                ("half deadline", "due", 90_000),
                ("timer", "due", 90_005),
                ("delivered", "due", 90_006),
            ),
            Row(OrderStatus.TIMED_OUT, has_timed_out=True, timed_out_after_ms=90_006),
        ),
    ),
    "fired-late": _planted(
        "fired-late",
        Story(
            (*_PLACED, ("delivered", "due", 120_000)),
            Row(OrderStatus.TIMED_OUT, has_timed_out=True, timed_out_after_ms=120_000),
        ),
    ),
    "timed-out-late": _planted(
        "timed-out-late",
        Story(
            (*_PLACED, _DELIVERED),
            Row(OrderStatus.TIMED_OUT, has_timed_out=True, timed_out_after_ms=150_000),
        ),
    ),
    "cancelled-yet-delivered": _planted(
        "cancelled-yet-delivered", Story((*_PLACED, *_PAYMENT, _DELIVERED), _PAID_ROW)
    ),
    "delivered-before-due": _planted(
        "delivered-before-due",
        Story(
            (*_PLACED, ("delivered", "due", -5_000)),
            Row(OrderStatus.TIMED_OUT, has_timed_out=True, timed_out_after_ms=-5_000),
        ),
    ),
    "never-delivered": _planted(
        "never-delivered",
        Story((*_HALVES, ("created, ignored", "placed", 8), _ARMED, *_PAYMENT), _PAID_ROW, "kept"),
    ),
    "dead-lettered": _planted(
        "dead-lettered",
        Story((*_PLACED, ("dead created", "placed", 40_000), *_PAYMENT), _PAID_ROW, "kept"),
        Story((*_PLACED, _DELIVERED, ("dead deadline", "due", 40_000)), _PLACED_ROW),
    ),
    "fifo-gap": _planted(
        "fifo-gap",
        Story(
            (*_HALVES, ("created, ignored", "placed", 8), _ARMED, *_PAYMENT),
            _PAID_ROW,
            "kept",
            is_grouped=True,
            is_young=True,
            partner=Story((*_PLACED, *_PAYMENT), _PAID_ROW, is_grouped=True),
        ),
    ),
}
"""The planted stories of each case."""

_PUSHED: Final[Step] = ("push timer", "placed", 20)
_PUSH_SENT: Final[Step] = ("push delivered", "push", 1)

SOUND_PUSHES: Final = (
    PushStory((_PUSHED, _PUSH_SENT), PushStatus.DELIVERED, share=0.9),
    PushStory((_PUSHED, ("push cancel", "placed", 3_000)), PushStatus.CANCELLED, share=0.1),
)
PLANTED_PUSHES: Final = (
    PushStory((_PUSHED,), PushStatus.DELIVERED, is_finding=True),
    PushStory((_PUSHED, _PUSH_SENT), PushStatus.SCHEDULED, is_finding=True),
    PushStory((_PUSHED, _PUSH_SENT, ("push delivered", "push", 700)), PushStatus.DELIVERED, is_finding=True),
    PushStory((_PUSHED, _PUSH_SENT), "LOST", is_finding=True, has_schedule=True),
)
PUSH_CASE: Final = "pushes-do-not-sum"
CART_CASE: Final = "cart-difference"
