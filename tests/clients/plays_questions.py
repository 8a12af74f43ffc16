"""What the broker may ask a client over its Telemetry stream, as `tidewheel client` does."""

from __future__ import annotations

from tests.clients.play import Play, until


def a_client_tells_what_its_threads_do(play: Play) -> None:
    play.create_topic("NORMAL")
    play.push()
    until(play.group_has_begun)
    assert play.ask("POST", "clients/stack", {"client": consumer_of(play)})["stack"]


def a_push_consumer_tries_a_message_once_more(play: Play) -> None:
    play.create_topic("NORMAL")
    consumer = play.push()
    play.send_all("again")
    until(lambda: len(consumer.seen()) == 1 and play.lag() == 0)
    wanted = {"client": consumer_of(play), "topic": play.topic, **place_of(play)}
    assert play.ask("POST", "clients/verify", wanted)["code"] == "OK"
    assert [one.body for one in consumer.seen()] == ["again", "again"]
    assert play.lag() == 0


def consumer_of(play: Play) -> str:
    """The id of the play's push consumer."""
    there = [one for one in play.ask("GET", "clients")["clients"] if one["group"] == play.group]
    assert [one["kind"] for one in there] == ["PUSH_CONSUMER"]
    return str(there[0]["client_id"])


def place_of(play: Play) -> dict[str, int]:
    """Where the only message of the play's topic lies."""
    queues = play.ask("GET", f"topics/{play.topic}")["queues"]
    held = [one for one in queues if int(one["end_offset"]) > int(one["min_offset"])]
    assert len(held) == 1
    return {"queue_id": held[0]["queue_id"], "queue_offset": int(held[0]["min_offset"])}
