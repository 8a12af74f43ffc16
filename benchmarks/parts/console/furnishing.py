"""A filled broker: timers, groups, open transactions, dead letters, schedules and a journal.

Everything is set over the HTTP interface. All groups lag, and the group mailer has dead letters with three
reasons.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from parts.http_calls import Connection

IN_A_CALL: Final = 1000
TOPICS: Final = 20
SPREAD_SECONDS: Final = 14 * 86_400
"""Timers are due within two weeks; every tenth is due at a full hour, as campaigns are."""

REASONS: Final = ("card declined", "address <unknown>", "timeout of the shop")


class Amounts(NamedTuple):
    """The number of items of each kind."""

    timers: int
    groups: int
    halves: int
    dead_letters: int


async def furnish(one: Connection, amounts: Amounts) -> None:
    """Set all items with sequential calls."""
    for number in range(TOPICS):
        await one.post("/api/topics", {"name": f"shop-{number}", "queue_count": 4})
    await set_timers(one, amounts.timers)
    await begin_halves(one, amounts.halves)
    await set_up_groups(one, amounts.groups)
    await give_up(one, amounts.dead_letters)
    for number in range(5):
        schedule = {"topic": "shop-1", "body": "x", "cron": f"{number} 9 * * *", "time_zone": "Asia/Shanghai"}
        await one.put(f"/api/schedules/daily-{number}", schedule)


async def set_timers(one: Connection, count: int) -> None:
    """Set timers with keys, tags and properties."""
    for first in range(0, count, IN_A_CALL):
        rows = [timer_of(number) for number in range(first, min(count, first + IN_A_CALL))]
        await one.post("/api/timers", {"timers": rows})


def timer_of(number: int) -> dict[str, Any]:
    """Return the timer of a number."""
    seconds = 3600 + number * 7919 % SPREAD_SECONDS
    seconds -= seconds % 3600 if number % 10 == 0 else 0
    return {
        "topic": f"shop-{number % TOPICS}",
        "body": f"order {number}",
        "in": f"{seconds}s",
        "timer_key": f"order:{number}",
        "keys": [f"order:{number}"],
        "tag": "campaign" if number % 10 == 0 else "timeout",
        "properties": {"shop": str(number % 7)},
    }


async def begin_halves(one: Connection, count: int) -> None:
    """Begin transactions without ending them."""
    for number in range(count):
        half = {"topic": "payments", "body": f"payment {number}", "keys": [f"payment:{number}"]}
        await one.post("/api/transactions", half)


async def set_up_groups(one: Connection, count: int) -> None:
    """Subscribe groups to topics with messages that they have not received."""
    for number in range(count):
        await one.post(f"/api/groups/group-{number}/receive", {"topic": f"shop-{number % TOPICS}"})
    for number in range(TOPICS):
        rows = [{"topic": f"shop-{number}", "body": f"order {row}"} for row in range(IN_A_CALL)]
        await one.post("/api/messages", {"messages": rows})


async def give_up(one: Connection, count: int) -> None:
    """Move messages of a group to dead letters, for different reasons."""
    await one.post("/api/groups/mailer/receive", {"topic": "mails"})
    left, turn = count, 0
    while left:
        some = min(left, IN_A_CALL)
        rows = [{"topic": "mails", "body": "hello", "keys": [f"mail:{left - row}"]} for row in range(some)]
        await one.post("/api/messages", {"messages": rows})
        while some:
            answer = await one.post("/api/groups/mailer/receive", {"topic": "mails", "count": 32})
            handles = [part.partition(b'"')[0].decode() for part in answer.split(b'"receipt_handle":"')[1:]]
            reason = REASONS[turn % len(REASONS)]
            refusal = {"receipt_handles": handles, "dead_letter": True, "reason": reason}
            await one.post("/api/groups/mailer/nack", refusal)
            some, left, turn = some - len(handles), left - len(handles), turn + 1
