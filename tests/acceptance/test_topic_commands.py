"""`tidewheel topic` against a broker process that is killed: a retention, messages that are moved."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_timers import Serving


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path)
    yield serving
    serving.kill()


def shown(broker: Serving, topic: str) -> Any:
    """Return a topic as `topic show` has it."""
    return json.loads(broker.run("topic", "show", topic, "--json").stdout)


def kept(broker: Serving, topic: str) -> int:
    """Return how many messages a topic keeps."""
    return sum(int(one["end_offset"]) - int(one["min_offset"]) for one in shown(broker, topic)["queues"])


def test_a_retention_is_previewed_and_holds_after_kill_9(broker: Serving) -> None:
    for number in range(3):
        broker.ask("POST", "messages", {"topic": "prices", "body": str(number)})
    time.sleep(1.2)
    broker.ask("POST", "messages", {"topic": "prices", "body": "new"})
    preview = broker.run("topic", "alter", "prices", "--retention", "1s")
    assert (preview.returncode, preview.stdout) == (
        0,
        "3 of 4 messages would be discarded at once, 3 of them unfinished\n",
    )
    assert "add --unfinished 3 --yes" in preview.stderr
    assert kept(broker, "prices") == 4
    command = ("topic", "alter", "prices", "--retention", "1s", "--reason", "only new prices")
    done = broker.run(*command, "--yes")
    assert done.returncode == 0, done.stderr
    assert "prices takes mixed, 4 queues, messages up to 1s old" in done.stdout
    assert kept(broker, "prices") <= 1
    broker.kill()
    broker.start()
    assert shown(broker, "prices")["retention_ms"] == "1000"
    assert kept(broker, "prices") <= 1
    assert (
        broker.run("topic", "show", "prices").stdout.splitlines()[1].startswith("retention: 1s of this topic")
    )
    journal = broker.run("journal", "--about", "only new prices").stdout
    assert "topics alter" in journal
    young = broker.run("topic", "alter", "prices", "--retention", "7d")
    assert young.returncode == 0, "nothing is lost, so it needs no --yes"
    none = broker.run("topic", "alter", "prices", "--retention", "none")
    assert "messages up to" not in none.stdout


@pytest.mark.parametrize("nothing", ["0s", "0", "0ms"])
def test_a_retention_of_nothing_is_refused(broker: Serving, nothing: str) -> None:
    assert broker.run("topic", "create", "prices").returncode == 0
    assert broker.run("topic", "alter", "prices", "--retention", "7d").returncode == 0
    for more in ((), ("--yes",)):
        refused = broker.run("topic", "alter", "prices", "--retention", nothing, *more)
        assert refused.returncode == 2, refused
        assert "write none to remove the retention" in refused.stderr
    assert shown(broker, "prices")["retention_ms"] == str(7 * 86_400_000)
    status, answer = broker.ask("PUT", "topics/prices", {"retention": nothing})
    assert (status, "write none" in answer["message"]) == (400, True)


def test_messages_are_moved_and_not_copied_twice_after_kill_9(broker: Serving) -> None:
    assert broker.run("topic", "create", "orders", "slow", "--queues", "2").returncode == 0
    assert broker.run("group", "create", "shop", "orders").returncode == 0
    for batch in range(3):
        messages = [
            {"topic": "orders", "body": f"{batch}-{n}", "tag": "bulk" if n % 2 else "", "keys": ["k"]}
            for n in range(500)
        ]
        broker.ask("POST", "messages", {"messages": messages})
    command = ("topic", "move", "orders", "slow", "--tag", "bulk")
    preview = broker.run(*command, "--limit", "5")
    assert preview.stdout == "would move 5 of 750 messages of orders to slow\n"
    first = broker.run(*command, "--limit", "5", "--yes", "--reason", "a trial").stdout
    assert first.startswith("done  move  5 of 5 (750 match)  MOVED 5  task ")
    detached = json.loads(broker.run(*command, "--yes", "--detach", "--json").stdout)
    while broker.ask("GET", f"moves/tasks/{detached['id']}")[1]["done"] < 50:
        time.sleep(0.01)
    broker.kill()
    broker.start()
    items = json.loads(
        broker.run("topic", "tasks", detached["id"], "--items", "--limit", "1000", "--json").stdout
    )["items"]
    assert {one["verdict"] for one in items} == {"MOVED"}
    assert len(items) >= 50
    assert broker.run(*command, "--yes").stdout.startswith("done  move")
    bodies = broker.delivered("slow")
    assert len(bodies) == len({*bodies}) == 750, "each is there once"
    use = broker.ask("GET", "topics/orders/use")[1]
    assert use["unfinished"] == 750
    assert "move" in broker.run("topic", "tasks").stdout
    ended = broker.run("topic", "tasks", detached["id"])
    assert (ended.returncode, "ended with an earlier process" in ended.stderr) == (4, True)
    assert f"tidewheel topic tasks {detached['id']} --items" in ended.stderr
    listed = broker.run("topic", "tasks", detached["id"], "--items", "--limit", "1000")
    assert "whether it was finished is in the journal" in listed.stderr
    unknown = broker.run("topic", "tasks", "nonesuch")
    assert "the log contains no items of it" in unknown.stderr
    assert "--items" not in unknown.stderr
    assert "a trial" in broker.run("journal", "--about", "a trial").stdout
    message_id = items[0]["message_id"]
    life = broker.run("explain", message_id, "--topic", "slow").stdout
    assert f"moved from orders:{items[0]['name']}" in life


def test_a_task_that_runs_or_was_stopped_is_not_told_as_finished(broker: Serving) -> None:
    assert broker.run("topic", "create", "orders", "slow").returncode == 0
    broker.ask("POST", "messages", {"messages": [{"topic": "orders", "body": "x"}] * 20})
    command = ("topic", "move", "orders", "slow", "--rate", "1/h", "--yes", "--detach", "--json")
    task = json.loads(broker.run(*command).stdout)["id"]
    while not broker.ask("GET", f"moves/tasks/{task}")[1]["done"]:
        time.sleep(0.01)
    assert "running  move  1 of 20 so far  MOVED 1" in broker.run("topic", "tasks", task).stdout
    items = broker.run("topic", "tasks", task, "--items")
    assert "these are not all:  running" in items.stderr
    assert broker.run("topic", "tasks", task, "--stop").stdout.startswith("stopped  move  1 of 20  MOVED 1")
    assert "these are not all:  stopped" in broker.run("topic", "tasks", task, "--items").stderr


def test_a_task_of_another_kind_is_named(broker: Serving) -> None:
    assert broker.run("topic", "create", "orders", "slow").returncode == 0
    broker.ask("POST", "messages", {"messages": [{"topic": "orders", "body": "x"}] * 2})
    task = json.loads(broker.run("topic", "move", "orders", "slow", "--yes", "--json").stdout)["id"]
    for restarts in (False, True):
        if restarts:
            broker.kill()
            broker.start()
        for more in ((), ("--items",), ("--stop",)):
            other = broker.run("timer", "tasks", task, *more)
            assert other.returncode == 4
            assert f"See: tidewheel topic tasks {task}" in other.stderr
            assert "crash" not in other.stderr
    assert broker.run("topic", "tasks", task, "--items").stdout.count("MOVED") == 2
    assert "a crash interrupted it" in broker.run("timer", "tasks", "nonesuch").stderr


def test_a_preview_and_a_move_name_the_messages_that_stay(broker: Serving) -> None:
    assert broker.run("topic", "create", "orders", "slow", "--queues", "1").returncode == 0
    assert broker.run("group", "create", "shop", "orders").returncode == 0
    broker.ask("POST", "messages", {"messages": [{"topic": "orders", "body": str(n)} for n in range(5)]})
    held = broker.ask("POST", "groups/shop/receive", {"topic": "orders", "count": 2, "lease": "1h"})[1]
    failed = {"receipt_handles": [held["messages"][0]["receipt_handle"]], "after": "1h"}
    assert broker.ask("POST", "groups/shop/nack", failed)[0] == 200
    left = "  LEASED 1: a consumer holds the message or another one of its message group; move again later\n"
    preview = broker.run("topic", "move", "orders", "slow")
    assert preview.stdout == f"would move 4 of 5 messages of orders to slow\n{left}"
    limited = broker.run("topic", "move", "orders", "slow", "--limit", "3")
    assert limited.stdout == f"would move at most 3 of 5 messages of orders to slow\n{left}"
    done = broker.run("topic", "move", "orders", "slow", "--yes").stdout
    assert done.startswith("done  move  5 of 5  LEASED 1 MOVED 4  task ")
    assert done.endswith(left)


def test_a_preview_of_a_move_that_moves_nothing_says_so(broker: Serving) -> None:
    assert broker.run("topic", "create", "orders").returncode == 0
    assert broker.run("topic", "create", "ordered", "--type", "fifo").returncode == 0
    assert broker.run("group", "create", "shop", "orders").returncode == 0
    broker.ask("POST", "messages", {"messages": [{"topic": "orders", "body": str(n)} for n in range(3)]})
    preview = broker.run("topic", "move", "orders", "ordered")
    assert preview.stdout.startswith("would move 0 of 3 messages of orders to ordered\n  TW-144 3: ")
    assert preview.stderr == "nothing that matches would be changed: nothing to do\n"


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "purge", "orders", "--discard"),
        ("topic", "delete", "slow"),
        ("topic", "hold", "orders"),
        ("topic", "move", "orders", "slow"),
        ("topic", "alter", "orders", "--retention", "1s"),
        ("group", "reset", "shop", "--to", "latest"),
        ("group", "delete", "shop"),
        ("dlq", "redrive", "shop"),
        ("timer", "cancel", "--all", "--topic", "orders"),
        ("timer", "move", "--all", "--topic", "orders", "--by", "1h"),
        ("timer", "fire", "--all", "--topic", "orders"),
    ],
    ids=" ".join,
)
def test_each_preview_changes_nothing_says_so_and_exits_with_0(
    full: Serving, command: tuple[str, ...]
) -> None:
    before = full.ask("GET", "journal")[1]
    preview = full.run(*command)
    said = re.search(r"nothing was done: add (--unfinished \d )?--yes to ", preview.stderr)
    assert (preview.returncode, said is not None) == (0, True), preview
    assert preview.stdout, "the extent of the change"
    as_json = full.run(*command, "--json")
    assert (as_json.returncode, bool(json.loads(as_json.stdout))) == (0, True)
    assert full.ask("GET", "journal")[1] == before


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A broker with something to change for each verb."""
    serving = Serving(tmp_path_factory.mktemp("full"))
    assert serving.run("topic", "create", "orders", "slow").returncode == 0
    assert serving.run("group", "create", "shop", "orders").returncode == 0
    serving.ask("POST", "timers", {"topic": "orders", "body": "x", "in": "1h"})
    serving.ask("POST", "messages", {"messages": [{"topic": "orders", "body": "x"}] * 3})
    [one] = serving.ask("POST", "groups/shop/receive", {"topic": "orders", "count": 1})[1]["messages"]
    given_up = {"receipt_handles": [one["receipt_handle"]], "dead_letter": True}
    assert serving.ask("POST", "groups/shop/nack", given_up)[0] == 200
    time.sleep(1.2)
    yield serving
    serving.kill()


def test_a_preview_that_matches_nothing_has_nothing_to_do(full: Serving) -> None:
    preview = full.run("timer", "cancel", "--all", "--topic", "orders", "--tag", "none")
    assert (preview.returncode, preview.stdout) == (0, "would cancel 0 timers\n")
    assert preview.stderr == "nothing matches: nothing to do\n"


def test_a_preview_states_the_obstacle_that_yes_would_meet(full: Serving) -> None:
    unfinished = (
        "nothing was done: add --discard --unfinished 2 --yes to purge it with its 2 unfinished messages\n"
    )
    preview = full.run("topic", "purge", "orders")
    assert (preview.returncode, preview.stderr) == (0, unfinished)
    assert "TW-168" in full.run("topic", "purge", "orders", "--yes").stderr
    preview = full.run("topic", "delete", "orders", "--json")
    assert (preview.returncode, json.loads(preview.stdout)["timers"]) == (0, 1)
    assert preview.stderr == (
        "nothing was done: it would be refused, because orders is the topic of 1 timer (tidewheel timer "
        "cancel --all --topic orders). End them first, then add --discard --unfinished 2 --yes to "
        "delete it with its 2 unfinished messages\n"
    )
    assert "TW-168" in full.run("topic", "delete", "orders", "--discard", "--yes").stderr
    cleared = full.run("topic", "delete", "orders", "--discard").stderr
    assert cleared.endswith("End them first, then add --unfinished 2 --yes to delete it\n")


def test_a_purge_of_a_topic_without_messages_has_nothing_to_do(full: Serving) -> None:
    preview = full.run("topic", "purge", "slow")
    assert (preview.returncode, preview.stderr) == (0, "nothing matches: nothing to do\n")


def test_a_purge_discards_no_more_than_its_preview_showed(full: Serving) -> None:
    full.run("topic", "create", "carts")
    full.run("send", "carts", "1")
    preview = full.run("topic", "purge", "carts", "--discard")
    assert preview.stderr == "nothing was done: add --unfinished 1 --yes to purge it\n"
    full.run("send", "carts", "2")
    shown = ("carts", "--discard", "--unfinished", "1", "--yes")
    for verb in ("purge", "delete"):
        refused = full.run("topic", verb, *shown)
        assert (refused.returncode, "its unfinished messages from 1 to 2" in refused.stderr) == (4, True)
        assert "TW-160" in refused.stderr
    purged = full.run("topic", "purge", "carts", "--discard", "--unfinished", "2", "--yes")
    assert "2 messages were discarded, 2 of them unfinished" in purged.stdout
    assert full.run("topic", "delete", *shown).returncode == 0


def test_a_retention_discards_no_more_than_its_preview_showed(full: Serving) -> None:
    full.run("topic", "create", "rates")
    full.run("send", "rates", "1")
    time.sleep(1.2)
    alter = ("topic", "alter", "rates", "--retention", "1s")
    assert full.run(*alter).stderr == "nothing was done: add --unfinished 1 --yes to discard them\n"
    full.run("send", "rates", "2")
    time.sleep(1.2)
    refused = full.run(*alter, "--unfinished", "1", "--yes")
    assert refused.returncode == 4
    assert "its unfinished messages older than the retention from 1 to 2" in refused.stderr
    altered = full.run(*alter, "--unfinished", "2", "--yes")
    assert "2 messages were discarded, 2 of them unfinished" in altered.stdout


def test_a_preview_without_unfinished_messages_limits_the_change_to_none(full: Serving) -> None:
    full.run("topic", "create", "finished")
    full.run("group", "create", "reader", "finished")
    full.run("send", "finished", "1")
    [one] = full.ask("POST", "groups/reader/receive", {"topic": "finished", "count": 1})[1]["messages"]
    full.ask("POST", "groups/reader/ack", {"receipt_handles": [one["receipt_handle"]]})
    time.sleep(1.2)
    alter = ("topic", "alter", "finished", "--retention", "1s")
    purge, delete = (("topic", verb, "finished", "--discard") for verb in ("purge", "delete"))
    for words, verb in ((alter, "discard them"), (purge, "purge it"), (delete, "delete it")):
        assert full.run(*words).stderr == f"nothing was done: add --unfinished 0 --yes to {verb}\n"
    assert full.run("topic", "purge", "finished").stderr == "nothing was done: add --yes to purge it\n"
    full.run("send", "finished", "2")
    time.sleep(1.2)
    for words in (alter, purge, delete):
        refused = full.run(*words, "--unfinished", "0", "--yes")
        assert (refused.returncode, "from 0 to 1" in refused.stderr) == (4, True), refused


def test_a_number_of_unfinished_messages_needs_a_retention(full: Serving) -> None:
    full.run("topic", "create", "plain", "--queues", "2")
    refused = full.run("topic", "alter", "plain", "--queues", "4", "--unfinished", "0")
    assert (refused.returncode, "--unfinished limits what --retention discards" in refused.stderr) == (
        2,
        True,
    )
    assert shown(full, "plain")["queue_count"] == 2
