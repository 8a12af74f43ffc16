"""Dispatches gRPC calls to this node's broker if this node is the leader, and to the leader otherwise.

Each call is dispatched individually. Connections therefore stay open when the leader changes. Telemetry and
SyncLiteSubscription calls are always passed to `CallForwarder`, which stores the client state for the next
leader.
"""

from __future__ import annotations

from typing import Final

from services.cluster.forwarding.calls import SYNC_LITE, TELEMETRY, CallForwarder, RpcMethod
from services.front.connection import Connection, Service
from services.front.grpc_calls import CallReceived, CallStarted, Method
from services.front.grpc_wire import Status
from services.rpc.serving.serving import Serving

SEND: Final = "SendMessage"
UNKNOWN: Final = "The leader does not answer such a call."


class ServiceSwitch:
    """The gRPC service of a node."""

    def __init__(self, forwarding: CallForwarder) -> None:
        self._forwarding = forwarding
        self._connected_clients = forwarding.connected_clients
        self._service: Service = forwarding

    def serve(self, serving: Serving) -> None:
        """Start answering calls with this node's broker."""
        self._service = serving
        self._forwarding.serve_locally(serving)

    def forward(self) -> None:
        """Start forwarding calls to the leader."""
        self._service = self._forwarding
        self._forwarding.resume_forwarding()

    def method_of(self, path: str) -> Method | None:
        """Return the RPC method for `path`, or None if the path is unknown."""
        return self._service.method_of(path)

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        """Answer a call that has a single request message."""
        name = call.method.target.name
        if name == SEND:
            self._connected_clients.record_topic(call.head.get("x-mq-client-id"), call.message)
        service = self._forwarding if name == SYNC_LITE else self._service
        if self._has_looked_up(service, call):
            service.call_received(connection, call)
        elif (method := self._look_up_method(service, connection, call)) is not None:
            service.call_received(connection, call._replace(method=method))

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        """Answer a call that has a stream of request messages."""
        service = self._forwarding if call.method.target.name == TELEMETRY else self._service
        if self._has_looked_up(service, call):
            service.call_started(connection, call)
        elif (method := self._look_up_method(service, connection, call)) is not None:
            service.call_started(connection, call._replace(method=method))

    def _has_looked_up(self, service: Service, call: CallReceived | CallStarted) -> bool:
        """Return whether the method of a call was looked up in `service`."""
        return isinstance(call.method.target, RpcMethod) == (service is self._forwarding)

    def _look_up_method(
        self, service: Service, connection: Connection, call: CallReceived | CallStarted
    ) -> Method | None:
        """Look up the method of a call in `service`. End the call if there is no such method."""
        method = service.method_of(call.head.get(":path"))
        if method is None:
            connection.end(call.stream_id, Status.UNIMPLEMENTED, UNKNOWN)
        return method
