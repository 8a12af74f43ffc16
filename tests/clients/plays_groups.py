"""What groups share, what each has for itself, and what operators do to them."""

from __future__ import annotations

from tests.clients.play import ARRIVE_SECONDS, Play, bodies, finish, nothing_comes, take


def two_groups_each_get_everything(play: Play) -> None:
    play.send_all("a", "b", "c")
    for group in (play.named("one"), play.named("other")):
        assert bodies(take(play.consumer(group), 3)) == ["a", "b", "c"]


def consumers_of_a_group_share_its_messages(play: Play) -> None:
    play.send_all(*(f"{number:02d}" for number in range(20)))
    first, second = play.consumer(), play.consumer()
    half = take(first, 10, batch=10)
    rest = take(second, 10, batch=10)
    assert bodies(half + rest) == [f"{number:02d}" for number in range(20)]


def one_receive_brings_at_most_thirty_two(play: Play) -> None:
    play.send_all(*(str(number) for number in range(40)))
    assert len(play.consumer().receive(64)) == 32


def a_group_may_begin_with_what_comes_next(play: Play) -> None:
    play.send_all("before")
    play.set_group(start="latest")
    play.send_all("after")
    assert finish(play.consumer(), 1) == ["after"]
    nothing_comes(play)


def a_paused_group_gets_nothing_until_it_is_resumed(play: Play) -> None:
    play.create_topic("MIXED")
    play.set_group()
    play.ask("POST", f"groups/{play.group}/pause")
    play.send_all("waiting")
    nothing_comes(play)
    waiting = play.consumer(await_seconds=20).receiving()
    play.ask("POST", f"groups/{play.group}/resume")
    assert bodies(waiting.result(ARRIVE_SECONDS)) == ["waiting"]


def a_reset_group_gets_everything_again(play: Play) -> None:
    play.send_all("a", "b", "c")
    consumer = play.consumer()
    finish(consumer, 3)
    reset = f"groups/{play.group}/reset"
    play.ask("POST", reset, {"to": "earliest", "dry_run": True})
    nothing_comes(play)
    play.ask("POST", reset, {"to": "earliest"})
    assert sorted(finish(consumer, 3)) == ["a", "b", "c"]


def a_dead_letter_that_is_redriven_comes_back_to_its_group_alone(play: Play) -> None:
    play.create_topic("MIXED")
    play.set_group(attempts_max=1)
    sent = play.client.send(play.topic, "given up")
    consumer, other = play.consumer(await_seconds=2), play.consumer(play.named("other"))
    assert finish(other, 1) == ["given up"]
    [got] = take(consumer, 1)
    consumer.change_invisible(got, 0)
    assert consumer.receive() == []
    [letter] = play.listed_dead_letters()
    play.ask("POST", f"dead-letters/groups/{play.group}/{letter['offset']}/redrive", {})
    [again] = take(consumer, 1)
    consumer.ack(again)
    assert (again.body, again.message_id) == ("given up", sent.message_id)
    nothing_comes(play, play.named("other"))
    assert play.listed_dead_letters() == []
