"""A large table at one moment whose rows are taken afterwards, in slices: what changes first is taken first.

    freeze            the references of the table are copied, in one step
    take(count)       rows are taken, in the order of the table, until none is left
    before_change     the row of a key is taken; called before its value changes in place or is dropped

Rules:
- A row is of the moment of the freeze, whenever it is taken. A key that came later has none.
- What is taken never changes any more. It becomes JSON in a worker (`commitlog.snapshot`).
- A table has one of these at a time: a second freeze first takes what the one before has left.

Cost, measured with queues that have one entry gathered: 0.9 us a row, up to 2.2 ms for a slice of 1,000;
while it is open a look in two dictionaries for each change. Weak spot: the copy of the references is not
sliced: 0.5 ms for 20,000 keys, 6 ms for 80,000, 41 ms for 800,000.

Source: a checkpoint by copy on update, as in Cao et al., "Fast Checkpoint Recovery Algorithms for Frequently
Consistent Applications", SIGMOD 2011.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class DeferredRows(Generic[Key, Value]):
    """The rows of `table` at this moment: `row` makes one of a key and what `taken` returned of its value.

    `taken` runs in the thread of the table, `row` in any; a value of which it returns None has no row.
    """

    def __init__(
        self,
        table: dict[Key, Value],
        taken: Callable[[Value], Any],
        row: Callable[[Key, Any], Any],
    ) -> None:
        self._values = table.copy()
        self._left = iter(self._values)
        self._take, self._row = taken, row
        self._taken: dict[Key, Any] = {}
        self.is_open = bool(table)
        """Whether rows are still to be taken."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeferredRows) and [*self] == [*other]

    def __iter__(self) -> Iterator[Any]:
        return (self._row(key, taken) for key, taken in self.items())

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Return each key with what was taken of its value; in the table's thread while rows are left."""
        self.take_all()
        rows = ((key, self._taken[key]) for key in self._values)
        return ((key, taken) for key, taken in rows if taken is not None)

    def before_change(self, key: Key) -> None:
        """Take the row of a key, if that is still to be done: its value is about to change."""
        if self.is_open and key in self._values and key not in self._taken:
            self._taken[key] = self._take(self._values[key])

    def take(self, count: int) -> int:
        """Take up to `count` rows; return how many were looked at, fewer than `count` if that was the end."""
        looked_at = 0
        for key in islice(self._left, count):
            self.before_change(key)
            looked_at += 1
        if looked_at < count:
            self.is_open = False
            assert len(self._taken) == len(self._values), "a row was not taken"
        return looked_at

    def take_all(self) -> None:
        """Take all that is left."""
        while self.is_open:
            self.take(len(self._values) + 1)


NOTHING: DeferredRows[Any, Any] = DeferredRows({}, lambda value: value, lambda key, taken: taken)
"""The rows of an empty table."""
