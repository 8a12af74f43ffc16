"""Who answers the calls of a node's port: the broker while the node leads, else the leader elsewhere.

A connection outlives a change of leaders; each call goes to whoever answers when it comes.
"""

from __future__ import annotations

from services.cluster.forwarding import Forwarding
from services.front.connection import Connection, Service
from services.front.grpc_calls import CallReceived, CallStarted, Method


class Switch:
    """The service of a node's port."""

    def __init__(self, forwarding: Forwarding) -> None:
        self._forwarding = forwarding
        self._service: Service = forwarding

    def serve(self, service: Service) -> None:
        """Let the broker of this node answer."""
        self._service = service

    def forward(self) -> None:
        """Let the leader elsewhere answer."""
        self._service = self._forwarding

    def method_of(self, path: str) -> Method | None:
        """Return the method of a path; None if there is none."""
        return self._service.method_of(path)

    def call_received(self, connection: Connection, call: CallReceived) -> None:
        """Answer a call, now or later."""
        self._service.call_received(connection, call)

    def call_started(self, connection: Connection, call: CallStarted) -> None:
        """Answer a call whose request is a stream."""
        self._service.call_started(connection, call)
