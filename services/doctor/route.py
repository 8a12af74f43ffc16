"""Steps from the protocol to the topic: the answer to a client's first call, and the advertised addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from services.doctor.call import CallFailed, call
from services.doctor.connection import Connection
from services.doctor.finding import Finding, fine, wrong
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.settings.config import Address

QUERY_ROUTE: Final = "/apache.rocketmq.v2.MessagingService/QueryRoute"
DOCTOR: Final = ("x-mq-client-id", "tidewheel-doctor")
REFUSALS: Final = {Code.UNAUTHORIZED, Code.FORBIDDEN}


@dataclass(frozen=True, slots=True)
class Question:
    """The topic of a client, or an empty string. `metadata` are its authentication headers."""

    topic: str
    metadata: tuple[tuple[str, str], ...] = ()


def examined(connection: Connection, question: Question) -> Iterator[Finding]:
    """Query the route of a topic, as every client does first, and check the addresses in the answer."""
    try:
        reply = query_route(connection, question)
    except CallFailed as failed:
        yield wrong("gRPC", f"{failed.status}: {failed.text}", "This is no RocketMQ 5 broker or proxy.")
        return
    code = reply.status.code
    yield fine("gRPC", f"QueryRoute is answered: {Code.Name(code)}")
    if code == Code.UNAUTHORIZED and question.metadata:
        yield refused(question, reply.status)
        return
    if not question.topic:
        return
    if code != Code.OK:
        yield refused(question, reply.status)
        return
    told = {
        (one.host, one.port) for queue in reply.message_queues for one in queue.broker.endpoints.addresses
    }
    yield from (advertised(Address(*address)) for address in sorted(told))
    yield topic(question, reply)


def query_route(connection: Connection, question: Question) -> service.QueryRouteResponse:
    """Return the answer to a route query. Raises `CallFailed`."""
    host, port = connection.address
    request = service.QueryRouteRequest(
        topic=wire.Resource(name=question.topic),
        endpoints=wire.Endpoints(addresses=[wire.Address(host=host, port=port)]),
    )
    fields = (DOCTOR, *question.metadata)
    try:
        with connection.opened() as connected:
            reply = call(connected, str(connection.address), QUERY_ROUTE, request.SerializeToString(), fields)
        return service.QueryRouteResponse.FromString(reply)
    except OSError as error:
        raise CallFailed("UNAVAILABLE", error.strerror or str(error)) from error
    except DecodeError:
        raise CallFailed("INTERNAL", "the reply is no QueryRouteResponse") from None


def refused(question: Question, status: wire.Status) -> Finding:
    """Return a finding about a refusal, with the message of the broker."""
    if status.code in REFUSALS:
        return wrong("rights", status.message, "Give the client an access key with rights on the topic.")
    if status.code == Code.TOPIC_NOT_FOUND:
        return wrong("topic", status.message, f"Make it: tidewheel topic create {question.topic}")
    return wrong("topic", status.message, "Do what it says.")


def advertised(address: Address) -> Finding:
    """Check whether the address that clients get can be reached from this machine."""
    there = Connection(address).port()
    if there.advice:
        return wrong(
            "endpoint",
            f"clients are told {address}; {there.seen}",
            "Start the broker with --advertise HOST:PORT, an address that clients can reach.",
        )
    return fine("endpoint", f"clients are told {address}, which answers")


def topic(question: Question, reply: service.QueryRouteResponse) -> Finding:
    """Return a finding about the queues and message types of a topic."""
    types = {kind for queue in reply.message_queues for kind in queue.accept_message_types}
    names = ", ".join(sorted(wire.MessageType.Name(kind) for kind in types))
    seen = f"{question.topic} has {len(reply.message_queues)} queues and takes {names or 'nothing'}"
    if not types:
        return wrong("topic", seen, "Clients refuse to send to it: give it a type.")
    return fine("topic", seen)
