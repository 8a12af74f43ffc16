"""The bugs of `--bugs`, which are injected into separate orders while the shop runs.

No store is changed afterwards. A service mishandles the orders for which a fault is armed
(`services.shop.faults`), or a process is stopped while they are processed:

| case | injected bug |
|---|---|
| order-without-message | the order service writes the rows of an order without a transaction |
| message-without-order | the order service sends the messages of an order without its rows |
| outcome-contradicts-database | the order service marks an order as paid without a message |
| half-unresolved | the order service exits between the half messages and the rows, and is not restarted |
| effect-twice | a message is repeated, and the cart service removes the lines again |
| cart-not-cleared | the cart service acknowledges a message without processing it |
| paid-but-timed-out | a payment does not cancel its deadline, which then times the paid order out |
| fired-late | the broker is stopped while a deadline is due |
| never-delivered | the cart service is stopped permanently before an order is placed |
| dead-lettered | the cart service fails at every delivery of a message |
| pushes-do-not-sum | the push service marks a push as delivered without sending it |

The expected findings come from the fault log, which contains the injected faults and the stopped processes.
They are compared with the findings of the audit by case and subject. The audit runs with short limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.shop.faults import Fault, written_down
from tidewheel.errors import UnknownChoice

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ALL: Final = "all"
BROKER_AWAY: Final = "broker-away"
CARTS_STOPPED: Final = "carts-stopped"

LATE_LIMIT_MS: Final = 4_000
WAIT_LIMIT_MS: Final = 2_000
"""The limit for open half messages and unconsumed messages in the audit of a run with bugs."""

AUDIT_LIMITS: Final = (
    *("--late-limit", f"{LATE_LIMIT_MS // 1000}s"),
    *("--undecided-limit", f"{WAIT_LIMIT_MS // 1000}s"),
    *("--unconsumed-limit", f"{WAIT_LIMIT_MS // 1000}s"),
    *("--grace", "1s"),
)

ARMED: Final[dict[str, dict[str, tuple[Fault, ...]]]] = {
    "order-without-message": {"orders": (Fault.ROW_WITHOUT_MESSAGE,)},
    "message-without-order": {"orders": (Fault.MESSAGE_WITHOUT_ROW,)},
    "outcome-contradicts-database": {"orders": (Fault.PAY_WITHOUT_MESSAGE,)},
    "half-unresolved": {"orders": (Fault.DIE_AFTER_HALVES,)},
    "effect-twice": {"orders": (Fault.REPEAT_AS_NEW,), "carts": (Fault.CLEAR_AGAIN,)},
    "cart-not-cleared": {"carts": (Fault.ACK_WITHOUT_CLEARING,)},
    "paid-but-timed-out": {"orders": (Fault.KEEP_DEADLINE, Fault.TIME_OUT_PAID)},
    "fired-late": {},
    "never-delivered": {},
    "dead-lettered": {"carts": (Fault.POISON,)},
    "pushes-do-not-sum": {"pushes": (Fault.PUSH_WITHOUT_MESSAGE,)},
}
"""The cases and the faults that are armed for each service."""

TELLING: Final[dict[str, str]] = {
    Fault.ROW_WITHOUT_MESSAGE: "order-without-message",
    Fault.MESSAGE_WITHOUT_ROW: "message-without-order",
    Fault.PAY_WITHOUT_MESSAGE: "outcome-contradicts-database",
    Fault.DIE_AFTER_HALVES: "half-unresolved",
    Fault.CLEAR_AGAIN: "effect-twice",
    Fault.ACK_WITHOUT_CLEARING: "cart-not-cleared",
    Fault.TIME_OUT_PAID: "paid-but-timed-out",
    BROKER_AWAY: "fired-late",
    CARTS_STOPPED: "never-delivered",
    Fault.POISON: "dead-lettered",
    Fault.PUSH_WITHOUT_MESSAGE: "pushes-do-not-sum",
}
"""The fault log entry that identifies a subject, and its case."""

SUBJECTS_PER_CASE: Final = 2
ONLY_ONE: Final = frozenset({"half-unresolved"})
"""The service does not run after the first crash."""

Found = set[tuple[str, str]]
"""Pairs of case and subject."""


def chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requested cases in their defined order.

    Raises:
        UnknownChoice: If a case is unknown.
    """
    for name in names:
        if name not in (ALL, *ARMED):
            raise UnknownChoice(f"--bugs {name}: choose from {ALL}, {', '.join(ARMED)}.")
    return tuple(case for case in ARMED if case in names or ALL in names)


def subjects(case: str) -> list[str]:
    """Return the ids of the orders or pushes of a case."""
    return [f"{case}-{number}" for number in range(1, 2 if case in ONLY_ONE else SUBJECTS_PER_CASE + 1)]


def armed(cases: Iterable[str], service: str) -> str:
    """Return the faults that are armed at every start of a service."""
    return ",".join(
        f"{fault}={subject}"
        for case in cases
        for fault in ARMED[case].get(service, ())
        for subject in subjects(case)
    )


def truth(fault_log: Path) -> Found:
    """Return the case and subject of all injected bugs."""
    done = {(TELLING.get(line["fault"], ""), line["subject"]) for line in written_down(fault_log)}
    return {(case, subject) for case, subject in done if case and subject in subjects(case)}


def found(audited: dict[str, Any]) -> Found:
    """Return the case and subject of all findings of the audit."""
    return {(finding["case"], finding["subject_id"]) for finding in audited["findings"]}


def compared(expected: Found, found: Found) -> dict[str, dict[str, list[str]]]:
    """Return the expected, missed and surplus subjects by case."""
    return {
        case: {
            "expected": sorted(subject for one, subject in expected if one == case),
            "missed": sorted(subject for one, subject in expected - found if one == case),
            "surplus": sorted(subject for one, subject in found - expected if one == case),
        }
        for case in sorted({case for case, _ in expected | found}, key=_place)
    }


def _place(case: str) -> tuple[int, str]:
    cases = list(ARMED)
    return (cases.index(case) if case in cases else len(cases), case)
