"""Descriptions of the gRPC services for reflection."""

from __future__ import annotations

from typing import Final

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from services.rpc.generated import TYPES, health_pb2, metrics_service_pb2, reflection_pb2, service_pb2

REFLECTION_V1: Final = {"reflection.v1alpha": "reflection.v1", "reflection/v1alpha": "reflection/v1"}
FILES: Final = (service_pb2, metrics_service_pb2, health_pb2, reflection_pb2)
DESCRIBED: Final = frozenset(
    one.full_name for file in FILES for one in file.DESCRIPTOR.services_by_name.values()
)


def described() -> DescriptorPool:
    """Return the descriptions of all services."""
    pool = DescriptorPool()
    known: set[str] = set()
    for file in FILES:
        for one in TYPES.behind_imports(file.DESCRIPTOR.name):
            if one.name not in known:
                known.add(one.name)
                pool.Add(one)
    pool.Add(reflection_v1(TYPES.files[reflection_pb2.DESCRIPTOR.name]))
    return pool


def reflection_v1(alpha: FileDescriptorProto) -> FileDescriptorProto:
    """Return the description of reflection v1, whose messages equal those of v1alpha."""
    text = text_format.MessageToString(alpha)
    for before, after in REFLECTION_V1.items():
        text = text.replace(before, after)
    return text_format.Parse(text, FileDescriptorProto())
