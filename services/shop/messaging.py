"""Opens the official RocketMQ client and reports an unreachable broker or a missing topic immediately.

The client starts without an error even if no broker listens, and later reports every failure as "failed to
fetch route". Therefore the address is tested first, and the routes of the topics are fetched before the
client is used. Every shop message carries its business key and a JSON body.
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
    """Return a message with `key` as its key, delivered at `due_ms` (a full second) or immediately."""
    message = Message()
    message.topic = topic
    message.keys = key
    message.body = json.dumps(content, ensure_ascii=False).encode()
    if due_ms is not None:
        message.delivery_timestamp = due_ms // 1000  # in seconds, contrary to the docstring of the client
    for name, value in properties.items():
        message.add_property(name, value)
    return message


class JsonListener(MessageListener):  # type: ignore[misc] # the official client carries no types
    """Passes the content of every message to a function.

    If the function raises an exception, the broker redelivers the message.
    """

    def __init__(self, handle: Callable[[dict[str, Any]], object]) -> None:
        self._handle = handle

    def consume(self, message: Message) -> ConsumeResult:
        """Process a message. The official client calls this method in its own threads."""
        try:
            self.act(message)
        except Exception:  # any error must cause a redelivery
            log.exception("message not handled", topic=message.topic, message_id=message.message_id)
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS

    def act(self, message: Message) -> None:
        """Process a message. An exception causes a redelivery."""
        self._handle(json.loads(message.body))


@contextlib.contextmanager
def open_producer(
    broker: str, topics: list[str], checker: TransactionChecker | None = None
) -> Iterator[Producer]:
    """Yield a started producer.

    Its topics are declared, so the broker can send it check-backs for orphaned half messages.

    A producer with a checker sends transactions, so all its topics must accept them.
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
    """Yield a started push consumer of a topic."""
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
    """Return the client configuration for a reachable broker, with the user from the settings."""
    require_listener(broker)
    user = load(UserSettings)
    secret = secret_in(user.secret_key_file, "secret_key_file")
    return ClientConfiguration(broker, Credentials(user.access_key, secret))


def require_listener(broker: str) -> None:
    """Raise an error if the broker's address does not accept connections."""
    host, _, port = broker.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise BrokerUnreachable(
            f"Nothing listens at {broker} ({error}). Start one with `tidewheel serve`, or give its HOST:PORT."
        ) from error


def require_route(producer: Producer, topic: str) -> None:
    """Raise an error if the broker does not have a topic."""
    try:
        producer.route_manager.retrieve_topic_route_data(topic)
    except Exception as error:  # the client raises a bare Exception and logs the reason
        raise TopicNotFound(
            f"The broker has no topic {topic}. Create it with `tidewheel topic create {topic}`."
        ) from error


def require_transactions(producer: Producer, topic: str) -> None:
    """Raise an error if a topic does not accept transactions.

    The client would report it only at the first send.
    """
    queues = producer.route_manager.retrieve_topic_route_data(topic).message_queues
    types = set().union(*(queue.accept_message_types for queue in queues))
    if MessageType.TRANSACTION not in types:
        taken = ", ".join(sorted(map(Message.message_type_desc, types)))
        raise ConfigurationError(
            f"The broker's topic {topic} takes {taken} messages, and the shop sends transactions to it. "
            "Use a store in which it is new."
        )
