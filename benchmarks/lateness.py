"""Lateness of delayed messages at an official Python client. Prints JSON; times in milliseconds.

    .venv/bin/python benchmarks/lateness.py [--count 200] [--over 20]

Starts a broker on a temporary store, sends `count` messages due at whole seconds within `over` seconds (the
client's delivery timestamps have a resolution of one second), and receives them with a push consumer.
Lateness is the consumer's wall clock when its listener is called, minus the delivery time; "stored" is the
broker's part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from parts.serving import serving

TOPIC = "lateness"
LEAD_SECONDS = 3


def main() -> None:
    """Run the measurement and print its figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--count", type=int, default=200)
    arguments.add_argument("--over", type=int, default=20)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOME"] = folder
        with serving(Path(folder, "store"), "--segment-bytes", str(1 << 24)) as facts:
            received = measure(facts["listen"], chosen.count, chosen.over)
            stored = stored_lateness(facts["http"])
    print(json.dumps({"count": len(received), "received": figures(received), "stored": figures(stored)}))


def measure(endpoint: str, count: int, over: int) -> list[float]:
    """Send and receive; return the lateness of every received message in milliseconds."""
    from rocketmq import (
        ClientConfiguration,
        ConsumeResult,
        Credentials,
        FilterExpression,
        Message,
        MessageListener,
        Producer,
        PushConsumer,
    )

    late: list[float] = []

    class Stopwatch(MessageListener):  # type: ignore[misc] # the official client carries no types
        def consume(self, message: Message) -> ConsumeResult:
            late.append(time.time() * 1000 - message.delivery_timestamp)
            return ConsumeResult.SUCCESS

    configuration = ClientConfiguration(endpoint, Credentials())
    consumer = PushConsumer(configuration, "stopwatch", Stopwatch(), {TOPIC: FilterExpression()})
    producer = Producer(configuration, (TOPIC,))
    for client in (consumer, producer):
        client.startup()
    first = int(time.time()) + LEAD_SECONDS
    for number in range(count):
        message = Message()
        message.topic, message.body = TOPIC, str(number).encode()
        message.delivery_timestamp = first + number % over
        producer.send(message)
    while len(late) < count and time.time() < first + over + 30:
        time.sleep(0.1)
    for client in (consumer, producer):
        client.shutdown()
    return late


def stored_lateness(http: str) -> list[float]:
    """Return the lateness of the store time of each message (up to 1,000), in milliseconds."""
    after = ",".join(f"{queue}:0" for queue in range(4))
    with urlopen(f"http://{http}/api/topics/{TOPIC}/arrivals?after={after}&limit=1000") as answer:
        messages = json.load(answer)["messages"]
    return [float(message["store_ms"]) - float(message["delivery_ms"]) for message in messages]


def figures(late: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile, the maximum, and the number of early messages."""
    cuts = statistics.quantiles(late, n=100, method="inclusive")
    return {
        "p50_ms": round(cuts[49], 1),
        "p99_ms": round(cuts[98], 1),
        "max_ms": round(max(late), 1),
        "early": sum(one < 0 for one in late),
    }


if __name__ == "__main__":
    main()
