"""`tidewheel store` on stores that are not what they should be: a sentence with a remedy, nothing changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.cli.main import main

NOW_MS = 1_763_700_000_000
SEGMENT_BYTES = 4096
NOBODY = 65_534

AS_ANOTHER_USER = f"""
import contextlib, os, sys
from services.cli.main import main
good, bad = sys.argv[1:]
with contextlib.suppress(SystemExit):
    main(["store", "verify", "--store", good])
os.getuid() or os.setuid({NOBODY})
main(["store", "verify", "--store", bad])
"""
"""Runs a command as somebody whom files of mode 0 concern; the first run imports what the second needs."""

Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of several segments with a snapshot."""
    root = tmp_path_factory.mktemp("good") / "store"
    disk = RealDisk(root)
    broker = Broker.open(
        disk, BrokerSettings(segment_bytes=SEGMENT_BYTES, queue_count=2, tail_entries_max=1), NOW_MS
    )
    for number in range(60):
        broker.sending.send(
            Message(topic="orders", body=b"order %d" % number, message_id=f"M{number}"), NOW_MS
        )
        flush = broker.take_flush()
        assert flush is not None
        flush.write()
        broker.complete_flush(flush, NOW_MS)
    broker.store.dispatch.write()
    broker.checkpoint(NOW_MS).write(disk)
    disk.close()
    return root


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "store"))


def segment(number: int) -> str:
    return layout.segment_path(number * SEGMENT_BYTES)


def cut(name: str, length: int = 0) -> Spoil:
    return lambda store: os.truncate(store / name, length)


def content(store: Path) -> dict[str, bytes]:
    """Every file but those that tell of starts, by path."""
    skipped = ("lock", "boots")
    return {
        str(path): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file() and path.name not in skipped
    }


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    return int(ended.value.code or 0)


UNUSABLE: dict[str, tuple[Spoil, str, str]] = {
    "foreign file": (
        lambda store: (store / "commitlog/notes.txt").touch(),
        "commitlog/notes.txt",
        "Move it out",
    ),
    "middle segment missing": (lambda store: (store / segment(1)).unlink(), segment(1), "Restore it"),
    "last segment missing": (lambda store: (store / segment(2)).unlink(), segment(2), "Restore it"),
    "newer format": (
        lambda store: (store / "format").write_text("tidewheel 9\n"),
        "format 9",
        "Upgrade tidewheel",
    ),
    "older format": (
        lambda store: (store / "format").write_text("4\n"),
        "as format 4",
        "store export FOLDER",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_store_is_refused_and_left_alone(
    store: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, names, remedy = UNUSABLE[case]
    spoil(store)
    before = content(store)
    for tool in (["info"], ["verify"], ["repair", "--yes"], ["snapshot", store.parent / "copy"]):
        assert run("store", *tool, "--store", store) == 5
        message = capsys.readouterr().err
        assert message.startswith("TW-1")
        assert names in message
        assert remedy in message
    assert content(store) == before
    assert not (store.parent / "copy").exists()


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_broker_does_not_start_on_it_and_leaves_it_alone(store: Path, case: str) -> None:
    spoil, names, remedy = UNUSABLE[case]
    spoil(store)
    before = content(store)
    command = [sys.executable, "-m", "services.cli.main", "serve", "--store", str(store)]
    addresses = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    ended = subprocess.run(command + addresses, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 5
    assert names in ended.stderr
    assert remedy in ended.stderr
    assert content(store) == before


DAMAGED: dict[str, tuple[Spoil, str]] = {
    "first segment short": (cut(segment(0), 4000), segment(0)),
    "middle segment short": (cut(segment(1), 4000), segment(1)),
    "middle segment empty": (cut(segment(1)), segment(1)),
    "durable empty": (cut(layout.DURABLE), layout.DURABLE),
    "durable zeroed": (lambda store: (store / layout.DURABLE).write_bytes(bytes(64)), layout.DURABLE),
    "durable missing": (lambda store: (store / layout.DURABLE).unlink(), layout.DURABLE),
    "format empty": (cut(layout.FORMAT), layout.FORMAT),
    "format missing": (lambda store: (store / layout.FORMAT).unlink(), layout.FORMAT),
    "format damaged": (cut(layout.FORMAT, 99), layout.FORMAT),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_store_is_told_and_repaired_or_known(
    store: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, path = DAMAGED[case]
    spoil(store)
    before = content(store)
    assert run("store", "verify", "--store", store) == 5
    assert path in capsys.readouterr().out
    assert content(store) == before
    assert run("store", "repair", "--yes", "--store", store) == 0
    assert run("store", "verify", "--store", store) == 0
    assert run("store", "info", "--store", store) == 0


@pytest.mark.parametrize(
    ("name", "length"), [("keyindex", 5000), ("keyindex", 0), ("snapshots", 0), ("consumequeue/orders/0", 0)]
)
def test_a_file_of_another_size_is_named_and_made_anew(
    store: Path, name: str, length: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = max((store / name).iterdir())
    os.truncate(path, length)
    before = content(store)
    assert run("store", "verify", "--store", store) == 5
    told = capsys.readouterr()
    assert f"DAMAGED  {name}" in told.out
    assert "tidewheel store repair --dry-run" in told.err
    assert run("store", "repair", "--dry-run", "--store", store) == 0
    assert content(store) == before
    assert run("store", "repair", "--yes", "--store", store) == 0
    assert run("store", "verify", "--store", store) == 0


def test_what_is_no_store_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "rocketmq" / "commitlog").mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    cases = {
        "file": "is a file",
        "rocketmq": "store import",
        "photos": "no commitlog",
        "gone": "does not exist",
    }
    for name, reason in cases.items():
        assert run("store", "info", "--store", tmp_path / name) == 5
        message = capsys.readouterr().err
        assert str(tmp_path / name) in message
        assert reason in message
    assert not (tmp_path / "gone").exists()


def test_a_store_that_may_not_be_read_is_said(good: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        store = Path(shutil.copytree(good, Path(folder) / "store"))
        (store / layout.segment_path(0)).chmod(0)
        command = [sys.executable, "-c", AS_ANOTHER_USER, str(good), str(store)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 5
    assert f"{store / layout.segment_path(0)} may not be read by this user" in ended.stderr


def test_tools_print_what_a_program_can_read(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("store", "info", "--store", store, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["topics"][0]["message_count"] == 60
    assert run("store", "verify", "--store", store, "--json") == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True
    assert run("store", "dump", "log", "--store", store, "--topic", "orders", "--limit", "5") == 0
    told = capsys.readouterr()
    bodies = [json.loads(line)["body"] for line in told.out.splitlines()]
    assert bodies == [f"order {number}" for number in range(5)]
    assert "--limit 0 prints all" in told.err
    assert run("store", "dump", "queue", "orders", "1", "--store", store, "--from", "28", "--limit", "0") == 0
    assert [json.loads(line)["queue_offset"] for line in capsys.readouterr().out.splitlines()] == [28, 29]
    assert run("store", "dump", "queue", "orders", "7", "--store", store) == 4


def contents(store: Path) -> dict[Path, bytes]:
    """The files of a store but its lock."""
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_repair_is_a_preview_until_it_is_told_to_write(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(store)
    assert run("store", "repair", "--store", store) == 0
    assert "there is nothing to repair" in capsys.readouterr().out
    assert contents(store) == before
    assert run("store", "repair", "--yes", "--dry-run", "--store", store) == 2


@pytest.fixture
def timer_store(tmp_path: Path) -> Path:
    """A store in which one timer waits and one was delivered, with a snapshot."""
    root = tmp_path / "timers"
    disk = RealDisk(root)
    broker = Broker.open(disk, BrokerSettings(segment_bytes=SEGMENT_BYTES), NOW_MS)
    for name, delay_ms in (("soon", 10), ("later", 86_400_000)):
        message = Message(topic="orders", body=b"x", message_id=name, delivery_ms=NOW_MS + delay_ms)
        message.properties = {"TW_TIMER_KEY": f"key of {name}"}
        broker.sending.send(message, NOW_MS)
    for now_ms in (NOW_MS, NOW_MS + 10):
        broker.tick(now_ms)
        flush = broker.take_flush()
        assert flush is not None
        flush.write()
        broker.complete_flush(flush, now_ms)
    broker.checkpoint(NOW_MS + 10).write(disk)
    disk.close()
    return root


def test_timers_are_counted_listed_and_told_apart(
    timer_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("store", "info", "--store", timer_store, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pending_timers"], found["next_due_ms"]) == (1, NOW_MS + 86_400_000)
    assert (found["timer_names"], found["timer_ends"]) == (4, 1)
    parts = {one["name"]: one for one in found["parts"]}
    for name in ("timers", "timers-names", "timers-ends"):
        assert (parts[name]["file_count"] >= 1, parts[name]["file_bytes"] > 0) == (True, True)
    assert run("store", "info", "--store", timer_store) == 0
    assert "4 names and 1 ends of timers known" in capsys.readouterr().out
    assert run("store", "dump", "timers", "--store", timer_store) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["message_id"], one["end"]) for one in lines] == [("later", "PENDING"), ("soon", "DELIVERED")]


def test_lost_names_are_given_up_only_when_asked(
    timer_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (names,) = (timer_store / "timers-names").iterdir()
    names.unlink()
    before = content(timer_store)
    assert run("store", "repair", "--yes", "--store", timer_store) == 5
    assert "--give-up-lost-names" in capsys.readouterr().out
    assert run("store", "repair", "--dry-run", "--give-up-lost-names", "--store", timer_store) == 0
    assert "would make names and ends of timers of what is left" in capsys.readouterr().out
    assert content(timer_store) == before
    assert run("store", "repair", "--yes", "--give-up-lost-names", "--store", timer_store) == 0
    told = capsys.readouterr().out
    assert f"moved timers-names/{names.name} to quarantine" in told
    assert "lost: timers-names/" in told
    assert run("store", "verify", "--store", timer_store) == 0


def test_a_nodes_store_tells_what_was_accepted_and_what_of_that_is_synced(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("store", "info", "--store", store, "--json") == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["accepted_offset"] is None
    synced = alone["durable_offset"]
    (store / layout.CLUSTER).write_text('{"cluster": "00", "node": "a"}')
    assert run("store", "info", "--store", store) == 0
    told = capsys.readouterr().out
    assert (
        f"to {synced} synced\naccepted   up to {synced} by the cluster and taken in, all of it synced" in told
    )
    disk = RealDisk(store)
    layout.publish_accepted(disk, synced + 500, 0)
    disk.close()
    for verb, key in (("info", "durable_offset"), ("verify", "durable_offset")):
        assert run("store", verb, "--store", store) == 0
        told = capsys.readouterr().out
        assert f" up to {synced + 500} by the cluster and taken in; 500 bytes of it are not synced" in told
        assert run("store", verb, "--store", store, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert (found[key], found["accepted_offset"]) == (synced, synced + 500)


@pytest.mark.parametrize("verb", ["repair", "repair --dry-run", "repair --yes", "import"])
def test_nothing_is_written_into_a_nodes_store(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    source = Path(shutil.copytree(store, tmp_path / "source"))
    (source / layout.FORMAT).unlink()  # as RocketMQ's are
    (store / layout.CLUSTER).write_text('{"cluster": "00", "node": "a"}')
    before = content(store)
    given = [*verb.split(), source] if verb == "import" else verb.split()
    assert run("store", *given, "--store", store) == 2
    assert "has to be in the cluster's log first" in capsys.readouterr().err
    assert content(store) == before


def test_a_store_tells_of_its_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "store"
    disk = RealDisk(root)
    broker = Broker.open(disk, BrokerSettings(segment_bytes=SEGMENT_BYTES), NOW_MS)
    for epoch in (2, 5):
        broker.epoch.raise_to(epoch, NOW_MS)
        flush = broker.take_flush()
        assert flush is not None
        flush.write()
        broker.complete_flush(flush, NOW_MS)
        checkpoint = broker.checkpoint(NOW_MS)
        checkpoint.write(disk)
        broker.complete_checkpoint(checkpoint)
    disk.close()
    assert run("store", "info", "--store", root, "--json") == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 5
    assert run("store", "info", "--store", root) == 0
    assert "epoch      5" in capsys.readouterr().out
    assert run("store", "dump", "log", "--store", root) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["kind"], one["body"]) for one in lines] == [
        ("epoch", f'{{"epoch": {epoch}, "node": "", "version": 3}}') for epoch in (2, 5)
    ]
    assert run("store", "verify", "--store", root) == 0
    assert "nothing is damaged" in capsys.readouterr().out
    copy = tmp_path / "copy"
    assert run("store", "snapshot", copy, "--store", root) == 0
    capsys.readouterr()
    assert run("store", "info", "--store", copy, "--json") == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == 5
