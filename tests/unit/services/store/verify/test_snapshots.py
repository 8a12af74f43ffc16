"""How far groups are, compared where retention has deleted messages."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from services.store.read_only.state import GroupState
from services.store.verify.snapshots import differences_of_groups

DONE = st.tuples(st.integers(0, 12), st.frozensets(st.integers(0, 16)))


def state(done: tuple[int, frozenset[int]]) -> GroupState:
    committed_offset, above = done
    while committed_offset in above:
        committed_offset += 1
    ranges = tuple((offset, 1) for offset in sorted(above) if offset > committed_offset)
    return GroupState("g", "t", 0, committed_offset, ranges, 20)


def offsets(one: GroupState) -> set[int]:
    return set(range(one.committed_offset)) | {offset for offset, _ in one.done_above}


@given(DONE, DONE, st.integers(0, 16))
@example((10, frozenset()), (5, frozenset({6, 8, 9})), 8)
@example((8, frozenset()), (0, frozenset()), 8)
def test_a_snapshot_must_have_done_what_the_log_says_and_still_holds(
    folded: tuple[int, frozenset[int]], stored: tuple[int, frozenset[int]], first_offset: int
) -> None:
    there, here = state(stored), state(folded)
    missing = {offset for offset in offsets(here) - offsets(there) if offset >= first_offset}
    known = [there] if offsets(there) else []  # a snapshot names no queue in which a group has done nothing
    assert bool(list(differences_of_groups([here], known, {("t", 0): first_offset}))) == bool(missing)
