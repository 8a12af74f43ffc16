"""gRPC clients and servers for the services of `shop.proto`, built from its descriptor set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from services.shop.generated import shop_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator


class Method(NamedTuple):
    """A gRPC method: its name, its path, and its request and response classes."""

    name: str
    path: str
    request: Any
    answer: Any


def methods_of(service: str) -> Iterator[Method]:
    """Yield the methods of a service. The service is "Orders", "Carts" or "Pushes"."""
    described = shop_pb2.DESCRIPTOR.services_by_name[service]
    for one in described.methods:
        request, answer = (getattr(shop_pb2, kind.name) for kind in (one.input_type, one.output_type))
        yield Method(one.name, f"/{described.full_name}/{one.name}", request, answer)


def channel_to(address: str) -> grpc.Channel:
    """Return a channel to a shop service. Proxies from the environment are ignored."""
    return grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])


def stub_of(service: str, channel: grpc.Channel) -> SimpleNamespace:
    """Return an object that calls the methods of a service over a channel."""
    calls = {
        one.name: channel.unary_unary(one.path, one.request.SerializeToString, one.answer.FromString)
        for one in methods_of(service)
    }
    return SimpleNamespace(**calls)


def attach(service: str, servicer: object, server: grpc.Server) -> None:
    """Register an object whose methods implement a service with a server."""
    handlers = {
        one.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, one.name), one.request.FromString, one.answer.SerializeToString
        )
        for one in methods_of(service)
    }
    name = shop_pb2.DESCRIPTOR.services_by_name[service].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
