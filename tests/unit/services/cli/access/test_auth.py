"""Users and rights from the command line, a token for the HTTP port; a broker does not stand open."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from services.cli.access.auth import warn
from services.cli.processes.serve import who_may
from services.front.certificates import make_self_signed
from services.settings.config import ServeSettings, load
from tests.command import tidewheel

TIDEWHEEL = [sys.executable, "-m", "services.cli.main"]


@dataclass
class Serving:
    """A broker process with a token, and a command line that knows it."""

    process: subprocess.Popen[str]
    listen: str
    http: str
    token: Path
    certificate: Path

    def run(
        self, *arguments: str, token: Path | None = None, more: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        told = {
            "TIDEWHEEL_HTTP": self.http,
            "TIDEWHEEL_HTTP_CA": str(self.certificate),
            "TIDEWHEEL_HTTP_TOKEN": str(token or self.token),
            "NO_COLOR": "1",
        }
        return tidewheel(*arguments, environment=told | (more or {}))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, []),
        ({"auth": True}, ["rights  clients say who they are"]),
        ({"listen": "0.0.0.0:1", "http": "0.0.0.0:2"}, ["rights  OPEN TO ALL", "token   none: HTTP is OPEN"]),
        ({"http_token": "t"}, ["token   for HTTP and the commands: export TIDEWHEEL_HTTP_TOKEN=t"]),
    ],
)
def test_a_broker_says_whom_it_serves(flags: dict[str, object], said: list[str]) -> None:
    lines = who_may(load(ServeSettings, **flags)).splitlines()
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))


def test_a_user_for_a_broker_that_asks_nobody_is_said_to_be_for_nothing_yet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warn({"is_asked": True})
    assert capsys.readouterr().err == ""
    warn({"is_asked": False})
    said = capsys.readouterr().err
    assert "--auth" in said
    assert "protocol port" in said, "HTTP may ask for tokens all the same"


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("auth")
    ready, token = folder / "ready", folder / "token"
    flags = ["--store", str(folder / "store"), "--segment-bytes", str(1 << 24), "--ready-file", str(ready)]
    doors = ["--listen", "0.0.0.0:0", "--http", "0.0.0.0:0", "--auth", "--http-token", str(token)]
    with subprocess.Popen(
        [*TIDEWHEEL, "serve", *flags, *doors], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while not ready.exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        facts = json.loads(ready.read_text())
        ports = [facts[name].rpartition(":")[2] for name in ("listen", "http")]
        assert facts["http_url"].startswith("https://")
        listen, http = (f"127.0.0.1:{port}" for port in ports)
        yield Serving(process, listen, f"https://{http}", token, folder / "store" / "tls" / "certificate.pem")
        process.terminate()


def test_users_and_rules_are_made_shown_and_taken_away(serving: Serving) -> None:
    made = serving.run("auth", "user", "add", "orders")
    assert made.stdout.startswith("access key  orders\nsecret      ")
    secret = made.stdout.split()[-1]
    assert "orders" in serving.run("auth", "user", "ls").stdout
    allowed = serving.run(
        *("auth", "acl", "allow", "orders", "send", "receive", "--topic", "orders*", "--group", "workers")
    )
    assert [line.split() for line in allowed.stdout.splitlines()[1:]] == [
        ["orders", "allow", "group", "workers", "receive"],
        ["orders", "allow", "topic", "orders*", "receive", "send"],
    ]
    serving.run("auth", "acl", "deny", "orders", "send", "--topic", "orders-old")
    removed = serving.run("auth", "acl", "remove", "orders", "--topic", "orders*", "--json")
    assert [(one["pattern"], one["effect"]) for one in json.loads(removed.stdout)] == [
        ("workers", "allow"),
        ("orders-old", "deny"),
    ]
    assert len(serving.run("auth", "acl", "ls", "orders").stdout.splitlines()) == 3
    another = json.loads(serving.run("auth", "user", "add", "orders", "--new-secret", "--json").stdout)
    assert another["secret"] not in ("", secret)
    assert serving.run("auth", "user", "remove", "orders").stdout == "orders removed\n"
    assert "no rules" in serving.run("auth", "acl", "ls").stderr


def test_a_role_takes_the_place_of_other_rules(serving: Serving, tmp_path: Path) -> None:
    serving.run("auth", "user", "add", "eve")
    serving.run("auth", "acl", "allow", "eve", "receive", "--topic", "old")
    given = serving.run("auth", "role", "eve", "operator", "--topic", "or*", "--group", "shop")
    assert [line.split() for line in given.stdout.splitlines()[1:]] == [
        ["eve", "allow", "group", "*", "view"],
        ["eve", "allow", "group", "shop", "admin"],
        ["eve", "allow", "topic", "*", "view"],
        ["eve", "allow", "topic", "or*", "admin", "send"],
    ]
    serving.run("auth", "role", "eve", "viewer")
    file = tmp_path / "token"
    file.write_text(json.loads(serving.run("auth", "token", "add", "eve", "--json").stdout)["token"])
    assert serving.run("topic", "ls", token=file).returncode == 0
    refused = serving.run("topic", "create", "orders", token=file)
    assert (refused.returncode, "auth acl allow eve admin --topic orders" in refused.stderr) == (4, True)
    wrong = serving.run("auth", "role", "eve", "operator", "--topic", "*")
    assert (wrong.returncode, "is an admin" in wrong.stderr) == (2, True)
    serving.run("auth", "user", "remove", "eve")


def test_a_user_calls_by_its_token_until_it_is_revoked(serving: Serving, tmp_path: Path) -> None:
    serving.run("auth", "user", "add", "shop")
    made = serving.run("auth", "token", "add", "shop", "--expires", "30d")
    said = dict(line.split(None, 1) for line in made.stdout.splitlines())
    assert (list(said), "not shown again" in made.stderr) == (["token", "id", "expires"], True)
    file = tmp_path / "token"
    file.write_text(said["token"])
    listed = serving.run("auth", "token", "ls", "shop")
    assert (said["id"] in listed.stdout, said["token"] in listed.stdout) == (True, False)
    assert serving.run("auth", "token", "list").stdout.splitlines()[0].split()[:2] == ["token", "user"]
    refused = serving.run("send", "shop-orders", "hello", token=file)
    assert (refused.returncode, refused.stderr[:7], refused.stderr.count("\n")) == (4, "TW-182 ", 1)
    allow = refused.stderr.strip().partition("Allow it: tidewheel ")[2]
    assert allow == "auth acl allow shop send --topic shop-orders"
    assert serving.run(*allow.split()).returncode == 0
    assert serving.run("send", "shop-orders", "hello", token=file).returncode == 0
    assert serving.run("topic", "ls", token=file).returncode == 4, "no operator"
    assert serving.run("auth", "token", "add", "shop", token=file).returncode == 4, "nor for itself"
    second = json.loads(serving.run("auth", "token", "add", "shop", "--json").stdout)
    assert (second["expires_ms"], second["is_asked"]) == (None, True)
    assert serving.run("auth", "token", "revoke", said["token"]).stdout == f"{said['id']} revoked\n"
    twice = serving.run("auth", "token", "revoke", said["id"])
    assert (twice.returncode, twice.stderr[:7]) == (4, "TW-158 ")
    refused = serving.run("send", "shop-orders", "hello", token=file)
    assert (refused.returncode, refused.stderr[:7]) == (3, "TW-181 ")
    assert "tidewheel auth token add" in refused.stderr
    file.write_text(second["token"])
    assert serving.run("send", "shop-orders", "hello", token=file).returncode == 0
    serving.run("auth", "user", "remove", "shop")
    assert serving.run("send", "shop-orders", "hello", token=file).stderr[:7] == "TW-181 "
    for what in ("token", "acl"):
        assert serving.run("auth", what, "ls", "shop").stderr[:7] == "TW-155 ", "its user is gone"
    listed = serving.run("refused", "--json")
    assert json.loads(listed.stdout)["counts"]["no right"] >= 3
    assert second["token"] not in listed.stdout


def test_whoami_shows_the_user_of_the_token_and_its_rules(serving: Serving, tmp_path: Path) -> None:
    assert serving.run("auth", "whoami").stdout == "administrator: all rights\n"
    serving.run("auth", "user", "add", "seller")
    made = json.loads(serving.run("auth", "token", "add", "seller", "--json").stdout)
    file = tmp_path / "token"
    file.write_text(made["token"])
    me = serving.run("auth", "whoami", token=file)
    assert me.stdout == f"user     seller\ntoken    {made['id']}\nexpires  never\n"
    assert "tidewheel auth acl allow seller" in me.stderr
    serving.run("auth", "acl", "allow", "seller", "send", "--topic", "orders*")
    me = serving.run("auth", "whoami", token=file)
    assert me.stdout.splitlines()[-1].split() == ["seller", "allow", "topic", "orders*", "send"]
    told = serving.run("auth", "whoami", "--json", token=file)
    assert (json.loads(told.stdout)["user"], made["token"] in told.stdout) == ("seller", False)
    serving.run("auth", "token", "revoke", made["id"])
    refused = serving.run("auth", "whoami", token=file)
    assert (refused.returncode, refused.stderr[:7]) == (3, "TW-181 ")


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (("auth", "token", "add", "nobody"), "TW-155", 4),
        (("auth", "token", "add", "nobody", "--expires", "30"), "TW-120", 2),
        (("auth", "token", "revoke", "0123456789ab"), "TW-158", 4),
        (("auth", "user", "add", "no no"), "TW-130", 2),
        (("auth", "user", "add", "nobody", "--new-secret"), "TW-155", 4),
        (("auth", "user", "remove", "nobody"), "TW-155", 4),
        (("auth", "acl", "allow", "nobody", "send", "--topic", "t"), "TW-155", 4),
        (("auth", "acl", "allow", "nobody", "send"), "TW-130", 2),
        (("auth", "acl", "remove", "nobody", "--topic", "t"), "TW-156", 4),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    serving: Serving, arguments: tuple[str, ...], code: str, exit_code: int
) -> None:
    refused = serving.run(*arguments)
    assert (refused.returncode, refused.stderr[:7]) == (exit_code, f"{code} ")
    assert (refused.stderr.count("\n"), refused.stdout) == (1, "")


def test_without_its_token_a_command_is_refused_and_that_is_listed(serving: Serving, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another-token-of-some-length\n")
    refused = serving.run("topic", "ls", token=wrong)
    assert (refused.returncode, refused.stderr[:7]) == (3, "TW-181 ")
    assert "TIDEWHEEL_HTTP_TOKEN" in refused.stderr
    missing = serving.run("topic", "ls", token=tmp_path / "none")
    assert (missing.returncode, missing.stderr[:7]) == (2, "TW-120 ")
    assert serving.run("topic", "ls").returncode == 0
    listed = serving.run("refused", "--why", "http token")
    assert "GET /api/topics" in listed.stdout
    assert json.loads(serving.run("refused", "--json").stdout)["counts"]["http token"] >= 1


def test_the_doctor_says_what_a_user_may(serving: Serving, tmp_path: Path) -> None:
    made = json.loads(serving.run("auth", "user", "add", "doctored", "--json").stdout)
    secret = tmp_path / "secret"
    secret.write_text(made["secret"] + "\n")
    as_user = ("--topic", "examined", "--access-key", "doctored", "--secret-key-file", str(secret))
    refused = serving.run("doctor", "client", serving.listen, *as_user)
    assert refused.returncode == 1
    assert "TW-182" in refused.stdout
    serving.run("auth", "acl", "allow", "doctored", "send", "--topic", "examined")
    assert "examined has 4 queues" in serving.run("doctor", "client", serving.listen, *as_user).stdout
    secret.write_text("wrong")
    refused = serving.run("doctor", "client", serving.listen, *as_user[2:])
    assert (refused.returncode, "TW-181" in refused.stdout) == (1, True)
    half = serving.run("doctor", "client", serving.listen, "--access-key", "doctored")
    assert (half.returncode, half.stderr[:7]) == (2, "TW-120 ")


def test_health_is_told_to_everybody_and_nothing_else(serving: Serving) -> None:
    trusting = ssl.create_default_context(cafile=str(serving.certificate))
    assert urlopen(f"{serving.http}/readyz", context=trusting).status == 200
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"{serving.http}/metrics", context=trusting)


def test_beyond_loopback_the_token_never_travels_in_the_clear(serving: Serving, tmp_path: Path) -> None:
    plain = {"TIDEWHEEL_HTTP": serving.http.removeprefix("https://")}
    refused = serving.run("topic", "ls", more=plain)
    assert (refused.returncode, refused.stderr[:7]) == (3, "TW-123 ")
    assert "https://" in refused.stderr
    (tmp_path / "other.pem").write_bytes(make_self_signed(["localhost", "127.0.0.1"])[0])
    unknown = serving.run("topic", "ls", more={"TIDEWHEEL_HTTP_CA": str(tmp_path / "other.pem")})
    assert (unknown.returncode, unknown.stderr[:7]) == (3, "TW-123 ")
    assert "TIDEWHEEL_HTTP_CA" in unknown.stderr
    nothing = serving.run("topic", "ls", more={"TIDEWHEEL_HTTP_CA": str(tmp_path / "none")})
    assert (nothing.returncode, nothing.stderr[:7]) == (2, "TW-120 ")
    assert "TIDEWHEEL_HTTP_CA" in nothing.stderr


def test_a_broker_that_others_reach_does_not_start_open_to_all(tmp_path: Path) -> None:
    for flags, named in (
        (("--listen", "0.0.0.0:0", "--http", "127.0.0.1:0"), "--auth"),
        (("--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"), "--http-token FILE"),
    ):
        refused = subprocess.run(
            [*TIDEWHEEL, "serve", "--store", str(tmp_path / "store"), *flags], capture_output=True, text=True
        )
        assert (refused.returncode, refused.stderr[:7]) == (2, "TW-127 ")
        assert named in refused.stderr
        assert "--insecure" in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_store_whose_key_is_gone_is_refused_and_no_key_is_made(serving: Serving, tmp_path: Path) -> None:
    serving.run("auth", "user", "add", "kept")
    key = serving.token.with_name("store") / "users.key"
    assert key.stat().st_mode & 0o777 == 0o600
    copied = tmp_path / "copy"
    made = serving.run("store", "snapshot", str(copied), "--store", str(serving.token.with_name("store")))
    assert made.returncode == 0, made.stderr
    assert not any(key.read_bytes().strip() in one.read_bytes() for one in copied.rglob("*") if one.is_file())
    where = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", str(copied)]
    refused = subprocess.run([*TIDEWHEEL, "serve", "--auth", *where], capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith(
        "TW-126 The key file does not open the users' secrets. "
    )
    assert not (copied / "users.key").exists()
    assert not copied.with_name("copy.key").exists()
