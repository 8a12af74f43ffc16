"""Compares the waiting list of half messages with an oracle that uses plain lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txn.checkback import WaitingCheckBacks

TOPICS = ("a", "b")
STEP = st.tuples(
    st.sampled_from(["add", "discard", "take"]), st.sampled_from(TOPICS), st.integers(0, 5), st.integers(0, 3)
)


@given(st.lists(STEP, max_size=40))
def test_halves_of_a_topic_wait_in_the_order_in_which_they_came(
    script: list[tuple[str, str, int, int]],
) -> None:
    unasked, expected = WaitingCheckBacks(), {topic: list[int]() for topic in TOPICS}
    for action, topic, half_offset, count in script:
        waiting = expected[topic]
        if action == "add":
            unasked.add(topic, half_offset)
            waiting += [half_offset] if half_offset not in waiting else []
        elif action == "discard":
            unasked.discard(topic, half_offset)
            expected[topic] = [one for one in waiting if one != half_offset]
        else:
            assert unasked.take(topic, count) == waiting[:count]
            expected[topic] = waiting[count:]
        there = {topic: waiting for topic, waiting in expected.items() if waiting}
        assert sorted(unasked.topics()) == sorted(there)
        assert len(unasked) == sum(map(len, there.values()))
        assert sorted(unasked.oldest()) == sorted(waiting[0] for waiting in there.values())
        for topic in TOPICS:
            assert (topic in unasked) == (topic in there)
            assert [*unasked.of(topic)] == expected[topic]
            assert [unasked.holds(topic, one) for one in range(6)] == [
                one in expected[topic] for one in range(6)
            ]
