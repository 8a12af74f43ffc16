"""What others test HTTP/2 and gRPC servers with, against ours: h2spec, and grpc-go's cases.

Both are built from their sources by Go, which takes minutes the first time: `make test-clients` does
(TIDEWHEEL_BUILD_CLIENTS=1); elsewhere these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import BrokerProcess, serving

ROOT = Path(__file__).parents[2]
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
CLIENT = "google.golang.org/grpc/interop/client@v1.85.0"
BUILD_SECONDS, RUN_SECONDS = 900, 120
CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both programs."""
    if not os.environ.get("TIDEWHEEL_BUILD_CLIENTS"):  # a network and minutes, which make test does without
        pytest.skip("make test-clients builds h2spec and grpc-go's client")
    assert shutil.which("go"), "Go is needed to build h2spec and grpc-go's client"
    folder = tmp_path_factory.mktemp("tools")
    for program in (H2SPEC, CLIENT):
        environment = os.environ | {"GOBIN": str(folder)}
        subprocess.run(["go", "install", program], env=environment, check=True, timeout=BUILD_SECONDS)
    return folder


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker."""
    yield from serving(BrokerProcess(tmp_path_factory.mktemp("spec") / "store"))


@pytest.fixture(scope="module")
def test_service() -> Iterator[str]:
    """The port of a server of gRPC's TestService."""
    command = [sys.executable, "-m", "tests.interop.service", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


@pytest.mark.parametrize("how", [(), ("-t", "-k")], ids=["plaintext", "TLS"])
def test_h2spec_passes_and_skips_nothing(tools: Path, broker: BrokerProcess, how: tuple[str, ...]) -> None:
    host, _, port = broker.listen.rpartition(":")
    command = [tools / "h2spec", *how, "-h", host, "-p", port, "-o", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
    told = ran.stdout.splitlines()[-1]
    assert told.endswith("0 skipped, 0 failed"), ran.stdout[ran.stdout.find("Failures") :]
    assert int(told.split()[0]) >= 145


@pytest.mark.parametrize("case", CASES)
def test_a_case_of_grpcs_interoperability_passes(tools: Path, test_service: str, case: str) -> None:
    command = [tools / "client", "--server_host", "127.0.0.1", "--server_port", test_service]
    ran = subprocess.run([*command, "--test_case", case], capture_output=True, text=True, timeout=RUN_SECONDS)
    assert ran.returncode == 0, ran.stderr
