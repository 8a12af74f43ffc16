"""State that is lost on restart because it is not in the log, and the reason why each loss is safe.

The log restores all other state. For each entry in `UNRECOVERED_STATE`, a test sets the state, restarts the
broker, and verifies that the state is lost.
"""

from __future__ import annotations

from typing import Final

UNRECOVERED_STATE: Final = {
    "half that waits for a producer": (
        "It is due, so a start asks about it, and learns again that nobody is there. What counts, that a "
        "producer was asked, is a record."
    ),
    "plain lease": (
        "Its message is given out again, as the same attempt: what the broker's own end cuts off is no "
        "failure of a consumer. A record for each would let every receive wait for the disk; leases of "
        "message groups are records."
    ),
    "subscription to lite topics": "Clients say again what they subscribe to, and soon.",
    "missed runs decided about": (
        "What was given up, or sent, moved the schedule's cursor and is a record. Of the rest a start "
        "decides again, by the same rules."
    ),
    "why a schedule cannot be computed": "It is computed again, perhaps with another file of time zones.",
    "retirement under way": (
        "Until the record of its cut the next look decides again, and finds what was kept; after it a start "
        "deletes what is left."
    ),
    "wish for a second snapshot": "The next look wishes again: it costs one record.",
    "queue of the next message": "Turns spread messages over queues; nothing rests on whose turn it is.",
    "jump of the clock": (
        "It tells why deliveries are late while it is being made up for, and how far the clock is ahead of "
        "elapsed time, by which leases end. Those that a start finds end by the clock of when they were "
        "recorded, and after their whole span at the latest."
    ),
    "damage that was found": "It is shown until the next start, which looks for itself.",
    "statistics": "They count since the start, as whoever reads them expects.",
}
