"""`tidewheel serve`: the banner on stdout for people, the log on stderr for whoever keeps it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commitlog.snapshots import snapshot
from services.cli.processes.serve import announce
from services.server.parts import Ready
from services.settings.config import Address, HttpAddress, ServeSettings
from tidewheel import Client
from tidewheel.testing.process import BrokerProcess

READY = Ready(Address("127.0.0.1", 1), HttpAddress("127.0.0.1", 2), 0, 1 << 24)


def test_the_banner_is_on_stdout_and_off_when_not_wanted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    announce(ServeSettings(store=tmp_path), READY)
    said = capsys.readouterr()
    assert "Ctrl-C stops it" in said.out
    assert "http://127.0.0.1:2" in said.out
    announce(ServeSettings(store=tmp_path, banner=False), READY)
    assert capsys.readouterr().out == said.err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_log_says_where_it_serves_and_why_it_stopped(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('listen = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\nstore = "data"\nlog_format = "json"\n')
    command = [sys.executable, "-m", "services.cli.main", "serve", "--config", str(file)]
    options = ["--segment-bytes", str(1 << 23), "--no-banner"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        events = []
        for line in process.stderr:
            events.append(json.loads(line))
            if events[-1]["event"] == "serving":
                process.send_signal(number)
        assert process.stdout.read() == b""
    assert process.returncode == 0
    told = ("store opened", "serving", "stopping", "checkpoint written", "stopped")
    opened, serving, stopping, written, stopped = (one for one in events if one["event"] in told)
    assert [one["event"] for one in events if one["event"] in told] == list(told)
    assert (serving["boot"], serving["pid"], opened["topics"]) == (0, process.pid, 0)
    assert stopping["why"] == stopped["why"] == number.name
    assert (stopping["unflushed_bytes"], stopped["flushed_bytes"]) == (0, 0)
    assert stopped["took_ms"] >= 0
    assert written["took_ms"] >= 0
    assert (written["level"], written["offset"], written["log_bytes"]) == ("info", 0, 0)
    assert written["snapshot_bytes"] == (tmp_path / "data" / snapshot.path_of(0)).stat().st_size
    assert (tmp_path / "data").is_dir()


def test_a_start_after_a_kill_says_how_much_log_it_replayed(tmp_path: Path) -> None:
    def replayed() -> list[dict[str, Any]]:
        lines = (
            json.loads(one) for one in (tmp_path / "broker.log").read_text().splitlines() if one[0] == "{"
        )
        return [one for one in lines if one["event"] == "the last stop was not clean: log replayed"]

    broker = BrokerProcess(tmp_path, ["--log-format", "json", "--no-banner"])
    broker.start()
    client = Client(broker.http)
    end_offset = client.send("t", "x").offset
    broker.kill()
    assert replayed() == []
    broker.start()
    [told] = replayed()
    assert (told["level"], told["from_offset"]) == ("warning", 0)
    assert told["replayed_bytes"] > end_offset > 0
    assert told["took_ms"] >= 0
    broker.stop()
    broker.start()
    assert replayed() == [told], "a clean stop leaves nothing to replay"
    broker.kill()


def test_the_broker_of_tests_takes_nothing_from_the_folder_that_they_run_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tidewheel.toml").write_text('auth = "perhaps"\n')
    (tmp_path / "broker").mkdir()
    broker = BrokerProcess(tmp_path / "broker")
    broker.start()
    try:
        assert broker.get("/api/topics")["topics"] == []
    finally:
        broker.kill()
