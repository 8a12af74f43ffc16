"""Message classes from descriptor sets: they are those of the .proto files, and clash with no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import health_pb2, timestamp_pb2
from services.rpc.generated import service_pb2 as service
from services.shop.generated import shop_pb2

ROOT = Path(__file__).parents[4]
BESIDE = """
from rocketmq.grpc_protocol import definition_pb2 as theirs
from services.rpc.generated import definition_pb2 as ours
names = {one.Message.DESCRIPTOR.full_name for one in (theirs, ours)}
assert names == {"apache.rocketmq.v2.Message"}, names
assert ours.Message.FromString(theirs.Message(body=b"7").SerializeToString()).body == b"7"
"""


def test_a_message_goes_through_its_bytes() -> None:
    sent = service.SendMessageRequest(
        messages=[
            wire.Message(
                topic=wire.Resource(name="orders"),
                user_properties={"TIMER_DELAY_SEC": "30"},
                system_properties={"message_type": wire.DELAY, "born_timestamp": {"seconds": 7}},
            )
        ]
    )
    read = service.SendMessageRequest.FromString(sent.SerializeToString())
    assert read == sent
    (message,) = read.messages
    assert dict(message.user_properties) == {"TIMER_DELAY_SEC": "30"}
    assert wire.MessageType.Name(message.system_properties.message_type) == "DELAY"
    assert message.system_properties.born_timestamp == timestamp_pb2.Timestamp(seconds=7)
    assert not message.system_properties.HasField("message_group")


def test_a_module_has_what_one_of_protocs_has() -> None:
    assert wire.Code.OK == wire.OK == wire.Code.Value("OK") == 20_000
    assert health_pb2.HealthCheckResponse.SERVING == 1
    assert wire.DESCRIPTOR.name == "apache/rocketmq/v2/definition.proto"
    assert [*shop_pb2.DESCRIPTOR.services_by_name] == ["Orders", "Carts", "Pushes"]


def test_the_official_clients_stubs_are_in_the_same_process() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BESIDE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("package", ["rpc", "shop"])
def test_what_is_generated_is_that_of_the_proto_files(package: str, tmp_path: Path) -> None:
    program = (
        f"import pathlib, sys\nfrom services.{package}.generate import main\nmain(pathlib.Path(sys.argv[1]))"
    )
    made = subprocess.run(
        [sys.executable, "-c", program, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    kept = ROOT / "services" / package / "generated"
    assert {one.name for one in tmp_path.iterdir()} == {one.name for one in kept.iterdir() if one.is_file()}
    differs = [one.name for one in tmp_path.iterdir() if one.read_bytes() != (kept / one.name).read_bytes()]
    assert differs == [], "make protos"
