# Calls a function for each message: a push consumer.
#
#   tidewheel sample python --use push > sample.py
#   pip install rocketmq-python-client==5.1.2
#   python sample.py
#
# User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
# With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.

import os
from threading import Event

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

TOPIC, GROUP = "sample-python-push", "sample-python-push"
TLS = False

user = Credentials(os.environ.get("TIDEWHEEL_ACCESS_KEY", ""), os.environ.get("TIDEWHEEL_SECRET_KEY", ""))
configuration = ClientConfiguration("127.0.0.1:8081", user)
received = Event()


class Listener(MessageListener):
    def consume(self, message):
        """Runs in a thread of the consumer. After FAILURE or an exception, the message is delivered again."""
        print("received", message.message_id, message.body.decode())
        received.set()
        return ConsumeResult.SUCCESS  # acknowledges it


consumer = PushConsumer(configuration, GROUP, Listener(), {TOPIC: FilterExpression("*")}, tls_enable=TLS)
consumer.startup()
producer = Producer(configuration, (TOPIC,), tls_enable=TLS)
producer.startup()

message = Message()
message.topic, message.body = TOPIC, b"hello from Python"
print("sent", producer.send(message).message_id)

received.wait()  # a service waits for its own end here

consumer.shutdown()
producer.shutdown()
