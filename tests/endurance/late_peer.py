"""A node that takes every call, over gRPC and HTTP, and answers none: `late_peer.py ADDRESS`.

Says the two ports once it serves.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn

import grpc


def never(*_: Any) -> NoReturn:
    """Answer nobody."""
    while True:
        threading.Event().wait()


class Late(BaseHTTPRequestHandler):
    """Answers no request."""

    do_POST = never  # noqa: N815 -- the library's name


class Calls(grpc.GenericRpcHandler):
    """Takes calls of any method."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return what answers a call."""
        return grpc.unary_unary_rpc_method_handler(never)


if __name__ == "__main__":
    address = sys.argv[1]
    calls = grpc.server(ThreadPoolExecutor(4), handlers=[Calls()])
    port = calls.add_insecure_port(f"{address}:0")
    calls.start()
    http = ThreadingHTTPServer((address, 0), Late)
    print(port, http.server_address[1], flush=True)
    http.serve_forever()
