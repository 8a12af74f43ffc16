"""The standard gRPC services: health for probes, and reflection for tools such as `grpcurl`.

The health status is SERVING from the first call on, and NOT_SERVING while the disk fails and after the broker
begins to stop. It is available for the whole server ("") and for RocketMQ's service by name (gRPC Health
Checking Protocol). Reflection (gRPC Server Reflection Protocol) is served as v1 and v1alpha, whose messages
differ only in their package.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from commitlog import limits
from services.front.grpc_wire import Refused, Status
from services.rpc.described import DESCRIBED, described
from services.rpc.generated import health_pb2, reflection_pb2
from services.rpc.serving.service import NAME, Rpc, Streaming, Unary
from services.rpc.wire.caller import Caller

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
KNOWN: Final = frozenset(("", NAME))


class Health:
    """The health status of the server, for checks and watches."""

    def __init__(self) -> None:
        self._status = SERVING
        self._has_left = False
        self._changed = asyncio.Event()
        self._watch_count = 0

    def tell(self, is_well: bool) -> None:
        """Set whether the server serves. It does not serve while its store's disk fails."""
        if not self._has_left:
            self._change(SERVING if is_well else NOT_SERVING)

    def leave(self) -> None:
        """Set the status to NOT_SERVING permanently, because the broker stops."""
        self._has_left = True
        self._change(NOT_SERVING)

    def _change(self, status: Any) -> None:
        self._status = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, request: Any, caller: Caller) -> Any:
        """Return the status. Raises `Refused` for an unknown service."""
        if request.service not in KNOWN:
            raise Refused(Status.NOT_FOUND, f"No service {request.service!r} is served here.")
        return health_pb2.HealthCheckResponse(status=self._status)

    async def watch(self, request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        """Yield the current status and each change. Raises `Refused` if there are too many watches."""
        if self._watch_count >= limits.WATCHES_MAX:
            raise Refused(Status.RESOURCE_EXHAUSTED, f"{limits.WATCHES_MAX} watch already. Ask by Check.")
        self._watch_count += 1
        try:
            told = None
            while True:
                changed = self._changed
                status = self._status if request.service in KNOWN else UNKNOWN
                if status != told:
                    told = status
                    yield health_pb2.HealthCheckResponse(status=status)
                await changed.wait()
        finally:
            self._watch_count -= 1


class Reflection:
    """Lists the services and describes their messages."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = sorted({*(one for one in services if one in DESCRIBED), HEALTH, *REFLECTION})
        self._pool: DescriptorPool | None = None

    async def info(self, requests: AsyncIterator[Any], caller: Caller) -> AsyncGenerator[Any, None]:
        """Answer each request. Errors are reported in the answer."""
        async for request in requests:
            yield self._answer(request)

    def _answer(self, request: Any) -> Any:
        answer = reflection_pb2.ServerReflectionResponse(valid_host=request.host, original_request=request)
        try:
            match request.WhichOneof("message_request"):
                case "list_services":
                    named = [reflection_pb2.ServiceResponse(name=name) for name in self._services]
                    answer.list_services_response.service.extend(named)
                case "file_by_filename":
                    self._tell(answer, self._described().FindFileByName(request.file_by_filename))
                case "file_containing_symbol":
                    found = self._described().FindFileContainingSymbol(request.file_containing_symbol)
                    self._tell(answer, found)
                case "file_containing_extension" | "all_extension_numbers_of_type":
                    raise KeyError("Nothing here is extended.")
                case _:
                    answer.error_response.error_code = Status.INVALID_ARGUMENT
                    answer.error_response.error_message = "The request asks nothing that is known here."
        except KeyError as error:
            answer.error_response.error_code = Status.NOT_FOUND
            answer.error_response.error_message = str(error.args[0])
        return answer

    def _described(self) -> DescriptorPool:
        if self._pool is None:
            self._pool = described()
        return self._pool

    @staticmethod
    def _tell(answer: Any, file: Any) -> None:
        """Add a file and all files that it imports."""
        told: dict[str, bytes] = {}
        files = [file]
        while files:
            one = files.pop()
            if one.name not in told:
                proto = FileDescriptorProto()
                one.CopyToProto(proto)
                told[one.name] = proto.SerializeToString()
                files += one.dependencies
        answer.file_descriptor_response.file_descriptor_proto.extend(told.values())


def standard_rpcs(health: Health, rpcs: Iterable[str]) -> dict[str, Rpc]:
    """Return the RPCs of both services for a server with the given RPCs."""
    asks, tells = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    reflection = Reflection({name.rpartition("/")[0] or NAME for name in rpcs})
    request, response = reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
    rows: dict[str, Rpc] = {
        f"{HEALTH}/Check": Unary(asks, tells, health.check, has_status=False),
        f"{HEALTH}/Watch": Streaming(asks, tells, health.watch, has_status=False),
    }
    for name in REFLECTION:
        rows[f"{name}/ServerReflectionInfo"] = Streaming(
            request, response, reflection.info, both_ways=True, has_status=False
        )
    return rows
