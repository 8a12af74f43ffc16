"""State that is lost on restart because it is not in the log, and the reason why each loss is safe.

All other state is restored from the log. For each entry in `UNRECOVERED_STATE`, a test sets the state,
restarts the broker, and verifies that the state is lost.
"""

from __future__ import annotations

from typing import Final

UNRECOVERED_STATE: Final = {
    "half that waits for a producer": (
        "The half is due, so a check-back is tried at the start, which finds again that no producer is "
        "connected. Check-backs that were sent are records."
    ),
    "plain lease": (
        "The message is delivered again, as the same attempt, because the end of a broker is no failure of "
        "a consumer. With a record for each lease, every receive would wait for the disk. Leases on "
        "messages of message groups are records."
    ),
    "subscription to lite topics": "Clients send their subscriptions again, within seconds.",
    "missed runs decided about": (
        "A run that was skipped or sent has moved the cursor of its schedule, which is a record. Other "
        "missed runs are decided again at the start, by the same rules."
    ),
    "why a schedule cannot be computed": (
        "The next run is computed again, possibly with a newer file of time zones."
    ),
    "retirement under way": (
        "Before the record of the cut, the next retention check decides again and finds the keep file. "
        "After this record, the remaining files are deleted at the start."
    ),
    "wish for a second snapshot": (
        "The next retention check requests the snapshot again, which costs one record."
    ),
    "queue of the next message": (
        "Messages are distributed over queues in turn, and no result depends on the turn."
    ),
    "jump of the clock": (
        "It explains late deliveries until elapsed time has caught up, and says how far the clock is ahead "
        "of elapsed time, by which leases end. Leases restored at a start end by the clock at which they "
        "were recorded, and after their full span at the latest."
    ),
    "damage that was found": "Damage is shown until the next start, which verifies the files again.",
    "statistics": "Statistics count from the start, as in other brokers.",
}
