"""Message groups on one queue as one consumer group sees them: who is in a consumer's hands, and who waits.

    free ---- a message is leased ----> closed ---- the last lease ended ----> its lowest message has the turn
     ^                                    ^                                          |            |
     +------ nothing of it waits ---------|------------------------------------------+            |
                                          +------------------ it is leased -----------------------+

A message group that is closed or has the turn holds the later ones of its messages back (they are parked);
one that is free is not known here at all. Rules:
- A message whose lease ended without acknowledgement waits again, before the later ones.
- Only the message that has the turn is given out, and behind it, in the same receive, as many more as a run
  may have (`services.broker.lending.may_join_run`).
Memory: one offset for each message that waits.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class MessageGroup:
    """One message group: how many of its messages are leased, and which wait."""

    in_flight: int = 0
    waiting: list[int] = field(default_factory=list)


class MessageGroups:
    """All message groups that are not free."""

    def __init__(self) -> None:
        self._groups: dict[str, MessageGroup] = {}
        self._turns: dict[int, str] = {}
        self.parked_count = 0
        """How many messages wait without having the turn."""

    def is_free(self, name: str, offset: int) -> bool:
        """Whether a candidate may be leased: nothing of its message group is, or comes before it."""
        return name not in self._groups or offset in self._turns

    def next_parked(self, name: str) -> int | None:
        """The lowest message of a message group that is parked: the next of a run."""
        group = self._groups.get(name)
        return group.waiting[0] if group and group.waiting else None

    def park(self, name: str, offset: int) -> None:
        """A message waits for its message group."""
        heapq.heappush(self._groups[name].waiting, offset)
        self.parked_count += 1

    def unpark(self, name: str, offset: int) -> None:
        """A message that waits without having the turn no longer does; costs a look at all that wait."""
        waiting = self._groups[name].waiting
        waiting.remove(offset)
        heapq.heapify(waiting)
        self.parked_count -= 1

    def leased(self, name: str, offset: int) -> None:
        """A message is in a consumer's hands."""
        group = self._groups.setdefault(name, MessageGroup())
        group.in_flight += 1
        self._turns.pop(offset, None)
        if group.waiting and group.waiting[0] == offset:
            heapq.heappop(group.waiting)
            self.parked_count -= 1

    def returned(self, name: str, offset: int) -> int | None:
        """A lease ended without acknowledgement; what has the turn now, None while others are leased."""
        self.park(name, offset)
        return self.done(name)

    def done(self, name: str) -> int | None:
        """A lease has ended; the offset that has the turn now, None if none has."""
        group = self._groups[name]
        group.in_flight -= 1
        return self._next_turn(name, group)

    def passed(self, offset: int) -> int | None:
        """A message is not given out at all; if it had the turn, the offset that has it now."""
        name = self._turns.pop(offset, None)
        return None if name is None else self._next_turn(name, self._groups[name])

    def cut(self, offset: int) -> list[int]:
        """Forgets the messages below `offset` that wait; returns the offsets that have the turn for that."""
        for group in self._groups.values():
            left = sorted(one for one in group.waiting if one >= offset)
            self.parked_count -= len(group.waiting) - len(left)
            group.waiting = left
        turns = [self.passed(turn) for turn in list(self._turns) if turn < offset]
        return [turn for turn in turns if turn is not None]

    def _next_turn(self, name: str, group: MessageGroup) -> int | None:
        if group.in_flight:
            return None
        if not group.waiting:
            del self._groups[name]
            return None
        self.parked_count -= 1
        turn = heapq.heappop(group.waiting)
        self._turns[turn] = name
        return turn
