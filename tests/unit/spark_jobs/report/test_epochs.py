"""In which words an audit says which epochs a log covers."""

from __future__ import annotations

from commitlog.epochs import EpochRange, epochs_of
from spark_jobs.report.epochs import epochs_in_words

FOURTH, SIXTH = EpochRange(500, 4, 40), EpochRange(900, 6, 60)


def words(begun: list[EpochRange], first_offset: int, end_epoch: int) -> str:
    """What is said, as a summary has the epochs."""
    return epochs_in_words([one._asdict() for one in epochs_of(begun, first_offset, end_epoch)], str)


def test_it_is_one_sentence_or_none() -> None:
    both = "; epoch 4 began 40; epoch 6 began 60."
    assert words([], 300, 0) == ""
    assert words([FOURTH, SIXTH], 500, 6) == f"The log covers epochs 4 to 6{both}"
    earlier = f"The log covers epochs 4 to 6, and the end of an earlier one{both}"
    assert words([FOURTH, SIXTH], 300, 6) == earlier
    alone = "The log covers epoch 4, and what a broker alone stored before; epoch 4 began 40."
    assert words([FOURTH], 0, 4) == alone
    assert words([], 300, 6) == "The log covers epoch 6."


def test_who_led_is_said_where_it_is_known() -> None:
    seventh = EpochRange(950, 7, 70, "b")
    said = words([FOURTH, SIXTH, seventh], 500, 7)
    assert said == "The log covers epochs 4 to 7; epoch 4 began 40; epoch 7 began 70, led by b."
