"""What reflection tells of messages."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import DescriptorProto

from services.rpc.described import described


def test_fields_are_described_with_their_names_in_json() -> None:
    system = described().FindMessageTypeByName("apache.rocketmq.v2.SystemProperties")
    assert system.fields_by_name["message_id"].json_name == "messageId"
    proto = DescriptorProto()
    system.CopyToProto(proto)
    assert all(field.json_name for field in proto.field)
