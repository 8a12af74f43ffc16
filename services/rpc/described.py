"""The services that are described to gRPC's tools (reflection), by the names that are seen on the wire.

Our generated messages have a package of their own (`generate`), which nobody sees on the wire; reflection
describes them by the names that are seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from services.rpc.generated import admin_pb2, service_pb2

ON_THE_WIRE: Final = {"tidewheel.wire": "apache.rocketmq.v2", "tidewheel/wire": "apache/rocketmq/v2"}
REFLECTION_V1: Final = {"reflection.v1alpha": "reflection.v1", "reflection/v1alpha": "reflection/v1"}
FILES: Final = (service_pb2, admin_pb2, metrics_service_pb2, health_pb2, reflection_pb2)
DESCRIBED: Final = frozenset(
    one.full_name.replace("tidewheel.wire", ON_THE_WIRE["tidewheel.wire"])
    for file in FILES
    for one in file.DESCRIPTOR.services_by_name.values()
)


def described() -> DescriptorPool:
    """Return the descriptions of all services, by their names on the wire."""
    pool = DescriptorPool()
    known: set[str] = set()
    for file in (one.DESCRIPTOR for one in FILES):
        for one in with_imports(file):
            if one.name not in known:
                known.add(one.name)
                pool.Add(renamed(one, ON_THE_WIRE))
    pool.Add(renamed(reflection_pb2.DESCRIPTOR, REFLECTION_V1))  # its messages are the same
    return pool


def with_imports(file: FileDescriptor) -> Iterator[FileDescriptor]:
    """Yield a file behind those that it imports."""
    for imported in file.dependencies:
        yield from with_imports(imported)
    yield file


def renamed(file: FileDescriptor, names: Mapping[str, str]) -> FileDescriptorProto:
    """Return a file's description with other names, those that clients know."""
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    text = text_format.MessageToString(proto)
    for ours, theirs in names.items():
        text = text.replace(ours, theirs)
    described = text_format.Parse(text, FileDescriptorProto())
    name_for_json(described.message_type)
    return described


def name_for_json(messages: Iterable[DescriptorProto]) -> None:
    """Write JSON's names of fields into descriptions: Python leaves them out, tools print what they find."""
    for message in messages:
        for field in message.field:
            first, *others = field.name.split("_")
            field.json_name = first + "".join(other[:1].upper() + other[1:] for other in others)
        name_for_json(message.nested_type)
