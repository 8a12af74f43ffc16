"""What gRPC's tools expect of every server: health, for probes, and reflection, for `grpcurl`.

Health is SERVING from the first call on, NOT_SERVING while the disk fails and once the broker is to stop, for
the whole server ("") and for RocketMQ's service by name (gRPC Health Checking Protocol; gRPC Server
Reflection).

Our generated messages have a package of their own (`generate`), which nobody sees on the wire; reflection
describes them by the names that are seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from services.rpc.generated import admin_pb2, service_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
ON_THE_WIRE: Final = {"tidewheel.wire": "apache.rocketmq.v2", "tidewheel/wire": "apache/rocketmq/v2"}
FILES: Final = (service_pb2, admin_pb2, metrics_service_pb2, health_pb2, reflection_pb2)
DESCRIBED: Final = frozenset(
    one.full_name.replace("tidewheel.wire", ON_THE_WIRE["tidewheel.wire"])
    for file in FILES
    for one in file.DESCRIPTOR.services_by_name.values()
)


class Standard:
    """The two services for one server, whose own is called `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._health: Any = health.aio.HealthServicer()  # type: ignore[attr-defined] # not in the stubs

    def add_to(self, server: aio.Server, services: Iterable[str]) -> None:
        """Add them before the server starts that serves these services."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        named = (*(one for one in services if one in DESCRIBED), health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(named, server, described())

    async def serves(self, is_well: bool = True) -> None:
        """Tell who asks that the server serves, or not while its store's disk fails."""
        for name in (health.OVERALL_HEALTH, self._name):
            await self._health.set(name, SERVING if is_well else NOT_SERVING)

    async def leaves(self) -> None:
        """Tell who asks that it serves no more."""
        await self._health.enter_graceful_shutdown()


def described() -> DescriptorPool:
    """Return the descriptions of all services, by their names on the wire."""
    pool = DescriptorPool()
    known: set[str] = set()
    for file in (one.DESCRIPTOR for one in FILES):
        for one in with_imports(file):
            if one.name not in known:
                known.add(one.name)
                pool.Add(as_on_the_wire(one))
    return pool


def with_imports(file: FileDescriptor) -> Iterator[FileDescriptor]:
    """Yield a file behind those that it imports."""
    for imported in file.dependencies:
        yield from with_imports(imported)
    yield file


def as_on_the_wire(file: FileDescriptor) -> FileDescriptorProto:
    """Return a file's description with the names that clients know."""
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    text = text_format.MessageToString(proto)
    for ours, theirs in ON_THE_WIRE.items():
        text = text.replace(ours, theirs)
    renamed = text_format.Parse(text, FileDescriptorProto())
    name_for_json(renamed.message_type)
    return renamed


def name_for_json(messages: Iterable[DescriptorProto]) -> None:
    """Write JSON's names of fields into descriptions: Python leaves them out, tools print what they find."""
    for message in messages:
        for field in message.field:
            first, *others = field.name.split("_")
            field.json_name = first + "".join(other[:1].upper() + other[1:] for other in others)
        name_for_json(message.nested_type)
