"""The faults of `--faults`, and the number of injected faults from the fault log.

The order service crashes once at every step of order placement and of payment. The cart service crashes twice
between the removal of lines and the acknowledgement. In addition, some sends are repeated with the same
message id or as new messages.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from services.shop.faults import Fault, written_down

if TYPE_CHECKING:
    from pathlib import Path

REPEAT_SAME_ID_EVERY = 10
REPEAT_AS_NEW_EVERY = 12
PLACING_DEATHS = (
    Fault.DIE_BETWEEN_HALVES,
    Fault.DIE_AFTER_HALVES,
    Fault.DIE_AFTER_ROW,
    Fault.DIE_BEFORE_COMMIT,
    Fault.DIE_AFTER_COMMIT,
    Fault.DIE_BETWEEN_ENDS,
)
PAYING_DEATHS = (
    Fault.DIE_PAYING_AFTER_HALF,
    Fault.DIE_PAYING_AFTER_ROW,
    Fault.DIE_PAYING_BEFORE_COMMIT,
    Fault.DIE_PAYING_AFTER_COMMIT,
)
ORDER_DEATHS = PLACING_DEATHS + PAYING_DEATHS
CART_DEATH_COUNT = 2


def armed_orders(order_count: int) -> list[str]:
    """Return the faults for each start of the order service. The crashes are spread over the replay.

    Fewer orders are paid than placed, so a crash during payment is triggered after half as many passes.
    """
    apart = max(1, order_count // (len(ORDER_DEATHS) + 2))
    repeats = f"{Fault.REPEAT_SAME_ID}/{REPEAT_SAME_ID_EVERY},{Fault.REPEAT_AS_NEW}/{REPEAT_AS_NEW_EVERY}"
    placing = [f"{repeats},{death}@{apart}" for death in PLACING_DEATHS]
    paying = [f"{repeats},{death}@{max(1, apart // 2)}" for death in PAYING_DEATHS]
    return [*placing, *paying, repeats]


def armed_carts(order_count: int) -> list[str]:
    """Return the faults for each start of the cart service."""
    apart = max(1, order_count // (CART_DEATH_COUNT + 2))
    return [f"{Fault.DIE_BEFORE_ACK}@{apart}"] * CART_DEATH_COUNT


def injected(fault_log: Path) -> dict[str, int]:
    """Return how often each fault was injected."""
    counts = Counter(line["fault"] for line in written_down(fault_log))
    return {fault: counts[fault] for fault in Fault}
