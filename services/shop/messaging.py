"""The official RocketMQ client, opened so that a wrong address or a missing topic is told at once.

The client itself starts against a closed port without a word and answers every later failure with "failed to
fetch route"; so the address is tried first, and the routes of the topics are fetched before work begins.
Every shop message carries its business key and a JSON body.
"""

from __future__ import annotations

import contextlib
import json
import socket
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog
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
from rocketmq.grpc_protocol import MessageType

from services.broker.spine.errors import TopicNotFound
from services.settings.config import UserSettings, load, secret_in
from tidewheel.errors import BrokerUnreachable, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rocketmq import TransactionChecker

CONNECT_TIMEOUT_S = 5
CONSUMER_THREADS = 4
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})

log = structlog.get_logger()


def json_message(
    topic: str,
    key: str,
    content: dict[str, Any],
    due_ms: int | None = None,
    properties: Mapping[str, str] = NO_PROPERTIES,
) -> Message:
    """Return a message about the thing called `key`, delivered at `due_ms` (a full second) or at once."""
    message = Message()
    message.topic = topic
    message.keys = key
    message.body = json.dumps(content, ensure_ascii=False).encode()
    if due_ms is not None:
        message.delivery_timestamp = due_ms // 1000  # seconds, whatever the client's docstring says
    for name, value in properties.items():
        message.add_property(name, value)
    return message


class JsonListener(MessageListener):  # type: ignore[misc] # the official client carries no types
    """Hands every message's content to a function; when that raises, the broker delivers again later."""

    def __init__(self, handle: Callable[[dict[str, Any]], object]) -> None:
        self._handle = handle

    def consume(self, message: Message) -> ConsumeResult:
        """Handle one message (the official client calls this on its own threads)."""
        try:
            self.act(message)
        except Exception:  # whatever it was, the message must come again
            log.exception("message not handled", topic=message.topic, message_id=message.message_id)
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS

    def act(self, message: Message) -> None:
        """Act on one message; raises if it must come again."""
        self._handle(json.loads(message.body))


@contextlib.contextmanager
def open_producer(
    broker: str, topics: list[str], checker: TransactionChecker | None = None
) -> Iterator[Producer]:
    """Yield a started producer. Its topics are declared, so that the broker may ask it about orphaned halves.

    With a checker it sends transactions, so all of its topics must take them.
    """
    producer = Producer(configuration_for(broker), topics, checker)
    producer.startup()
    try:
        for topic in topics:
            require_route(producer, topic)
            if checker is not None:
                require_transactions(producer, topic)
        yield producer
    finally:
        producer.shutdown()


@contextlib.contextmanager
def open_consumer(broker: str, group: str, topic: str, listener: MessageListener) -> Iterator[PushConsumer]:
    """Yield a started push consumer of one topic."""
    consumer = PushConsumer(
        configuration_for(broker),
        group,
        listener,
        {topic: FilterExpression()},
        consumption_thread_count=CONSUMER_THREADS,
    )
    consumer.startup()
    try:
        yield consumer
    finally:
        consumer.shutdown()


def configuration_for(broker: str) -> ClientConfiguration:
    """Return the client's settings for a broker that was found to answer, and its user if the broker
    asks.
    """
    require_listener(broker)
    user = load(UserSettings)
    secret = secret_in(user.secret_key_file, "secret_key_file")
    return ClientConfiguration(broker, Credentials(user.access_key, secret))


def require_listener(broker: str) -> None:
    """Refuse an address where nothing listens."""
    host, _, port = broker.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise BrokerUnreachable(
            f"Nothing listens at {broker} ({error}). Start one with `tidewheel serve`, or give its HOST:PORT."
        ) from error


def require_route(producer: Producer, topic: str) -> None:
    """Refuse a topic that the broker does not have."""
    try:
        producer.route_manager.retrieve_topic_route_data(topic)
    except Exception as error:  # the client raises a bare Exception and keeps the reason in its log
        raise TopicNotFound(
            f"The broker has no topic {topic}. Create it with `tidewheel topic create {topic}`."
        ) from error


def require_transactions(producer: Producer, topic: str) -> None:
    """Refuse a topic that was created for another type of message; the client tells it at the first send."""
    queues = producer.route_manager.retrieve_topic_route_data(topic).message_queues
    types = set().union(*(queue.accept_message_types for queue in queues))
    if MessageType.TRANSACTION not in types:
        taken = ", ".join(sorted(map(Message.message_type_desc, types)))
        raise ConfigurationError(
            f"The broker's topic {topic} takes {taken} messages, and the shop sends transactions to it. "
            "Use a store in which it is new."
        )
