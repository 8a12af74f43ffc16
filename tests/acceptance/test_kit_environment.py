"""The test kit on the machine of a developer who has settings, and a broker that does not start for it."""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from tests.command import tidewheel
from tidewheel.command import VARIABLE_PREFIX
from tidewheel.testing.kit import Tidewheel
from tidewheel.testing.process import BrokerFailed, BrokerProcess

OWN, MISTYPED = (f"{VARIABLE_PREFIX}{name}" for name in ("ENDPOINT", "LISTN"))
OF_THE_DEVELOPER = {
    "TIDEWHEEL_HTTP_TOKEN": "missing/token",
    "TIDEWHEEL_HTTP_CA": "missing/authority.pem",
    "TIDEWHEEL_HTTP_TLS": "on",
    "TIDEWHEEL_HTTP": "broker.invalid:1",
    "TIDEWHEEL_AUTH": "true",
    "TIDEWHEEL_AUTO_CREATE": "false",
    "TIDEWHEEL_PLAINTEXT": "off",
    "TIDEWHEEL_CLUSTER": "postgresql://db.invalid/tidewheel",
    "TIDEWHEEL_LOG_LEVEL": "loud",
    OWN: "broker.invalid:2",
}


def test_a_test_passes_whatever_settings_its_developer_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OF_THE_DEVELOPER.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    Path("tidewheel.toml").write_text('listen = "nonsense"\n')
    process = BrokerProcess(tmp_path)
    process.start()
    kit = Tidewheel(process, "test-1")
    try:
        kit.client.send("orders", "unpaid", delay="30m")
        kit.advance(timedelta(minutes=30))
        assert [one.text for one in kit.client.receive("orders", "shop")] == ["unpaid"]
    finally:
        kit.close()
        process.stop()


def test_a_variable_of_an_application_stops_no_command_and_is_named(tmp_path: Path) -> None:
    environment = {OWN: "127.0.0.1:8081", MISTYPED: "127.0.0.1:1"}
    shown = tidewheel("config", "show", "--json", environment=environment)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["listen"]["value"] == "127.0.0.1:8081"
    assert f"TW-245 {OWN} is no setting" in shown.stderr
    assert f"{MISTYPED} is no setting; did you mean TIDEWHEEL_LISTEN? It is ignored." in shown.stderr


def test_a_broker_names_in_its_log_what_it_ignores(tmp_path: Path) -> None:
    taken = tmp_path / "store"
    taken.write_text("a file")
    environment = {MISTYPED: "127.0.0.1:1"}
    served = tidewheel("serve", "--store", taken, "--http", "127.0.0.1:0", environment=environment)
    assert served.returncode != 0
    warned = json.loads(served.stderr.splitlines()[0])
    assert (warned["level"], warned["code"]) == ("warning", "TW-245")
    assert warned["why"].startswith(f"{MISTYPED} is no setting")


def test_a_broker_that_ends_at_its_start_says_so_with_its_last_lines(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, ("--queue-count", "0"))
    with pytest.raises(BrokerFailed, match=r"ended at its start, with exit code 2\.(?s:.*)queue-count"):
        process.start()
    assert not process.is_running


def test_a_broker_that_is_killed_at_its_start_without_a_word_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = ("/bin/sh", "-c", "kill -9 $$")
    monkeypatch.setattr("tidewheel.testing.process.COMMAND", killed)
    with pytest.raises(BrokerFailed, match=r"killed by SIGKILL\. It wrote nothing to its log, .*broker\.log"):
        BrokerProcess(tmp_path).start()


def test_a_broker_that_is_not_ready_in_time_is_stopped_and_that_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token")  # reading it waits for a writer
    (tmp_path / "token").chmod(0o600)
    process = BrokerProcess(tmp_path, ("--http-token", str(tmp_path / "token")), start_seconds=0.1)
    with pytest.raises(BrokerFailed, match=r"was not ready within 0\.1 s, and was stopped"):
        process.start()
    assert not process.is_running


def test_a_broker_that_was_killed_says_so_to_whoever_asks_it_next(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path)
    process.start()
    os.kill(process.pid, signal.SIGKILL)  # the machine's, when memory ends; not the kit's own `crash`
    said = (
        r"/api/clock/advance was not answered: .+\. "
        r"The broker has ended, killed by SIGKILL\. The end of its log, .*broker\.log:\n(?s:.*)\w"
    )
    with pytest.raises(BrokerFailed, match=said):
        Tidewheel(process, "test-1").advance("1m")


def test_a_broker_that_hangs_is_told_from_one_that_ended(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, answer_seconds=0.2)
    process.start()
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BrokerFailed, match=r"was not answered: .*timed out.* runs still, as process \d+"):
            Tidewheel(process, "test-1").pending()
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.stop()
