"""The bugs of `--bugs`: orders of their own to which something wrong is really done, while the shop runs.

Nothing is changed in a store afterwards. A service does the wrong thing with the orders that it is armed for
(`services.shop.faults`), or a process is stopped while they are under way:

| case to be found | what is done |
|---|---|
| order-without-message | the order service writes rows without their transaction |
| message-without-order | it announces an order, and forgets its rows |
| outcome-contradicts-database | it marks an order as paid without a message |
| half-unresolved | it dies between the halves and the rows, and never comes back |
| effect-twice | a message is repeated, and the cart service takes the lines out again |
| cart-not-cleared | the cart service acknowledges a message, and does nothing |
| paid-but-timed-out | a payment leaves its deadline standing, which then ignores the payment |
| fired-late | the broker is away while a deadline is due |
| never-delivered | the cart service is stopped for good before an order is announced |
| dead-lettered | the cart service fails at a message every time |
| pushes-do-not-sum | the push service marks a push as delivered that it never sent |

The truth is what the fault log says: each strike as the service has written it down, and what the driver has
done to the processes. It is compared with what the audit finds, subject by subject; the audit gets limits
as short as this run is.
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
"""How long a half may be open and a message unread, for the audit of a run with bugs."""

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
"""The cases, and what each service is armed with for them."""

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
"""The line of the fault log that makes a subject a finding, and of which case."""

SUBJECTS_PER_CASE: Final = 2
ONLY_ONE: Final = frozenset({"half-unresolved"})
"""The service is dead after the first."""

Found = set[tuple[str, str]]
"""Pairs of case and subject."""


def chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cases that are asked for, in their order.

    Raises:
        UnknownChoice: when a case cannot be made to happen.
    """
    for name in names:
        if name not in (ALL, *ARMED):
            raise UnknownChoice(f"--bugs {name}: choose from {ALL}, {', '.join(ARMED)}.")
    return tuple(case for case in ARMED if case in names or ALL in names)


def subjects(case: str) -> list[str]:
    """Return the ids of the orders (or pushes) of a case."""
    return [f"{case}-{number}" for number in range(1, 2 if case in ONLY_ONE else SUBJECTS_PER_CASE + 1)]


def armed(cases: Iterable[str], service: str) -> str:
    """Return the faults that a service is armed with at every start."""
    return ",".join(
        f"{fault}={subject}"
        for case in cases
        for fault in ARMED[case].get(service, ())
        for subject in subjects(case)
    )


def truth(fault_log: Path) -> Found:
    """Return per case the orders to which the armed bugs were really done."""
    done = {(TELLING.get(line["fault"], ""), line["subject"]) for line in written_down(fault_log)}
    return {(case, subject) for case, subject in done if case and subject in subjects(case)}


def found(audited: dict[str, Any]) -> Found:
    """Return per case the orders that the audit has found."""
    return {(finding["case"], finding["subject_id"]) for finding in audited["findings"]}


def compared(expected: Found, found: Found) -> dict[str, dict[str, list[str]]]:
    """Return per case the orders to be found, those missed, and those found without reason."""
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
