"""An address has so many connections and no more, and gets each back when it ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.front.admission import Admission, Limits

LIMIT = 3


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans())))
def test_no_address_has_more_than_it_may(steps: list[tuple[str, bool]]) -> None:
    admission, open_of = Admission(Limits(connections_per_address=LIMIT)), {"a": 0, "b": 0}
    for host, comes in steps:
        if comes:
            assert admission.admit(host) == (open_of[host] < LIMIT)
            open_of[host] = min(open_of[host] + 1, LIMIT)
        elif open_of[host]:
            admission.release(host)
            open_of[host] -= 1
        assert admission.connection_count == sum(open_of.values())
