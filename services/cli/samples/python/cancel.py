# Cancels two timers: one by its recall handle, one by a key of your own.
#
#   tidewheel sample python --use cancel > sample.py
#   pip install rocketmq-python-client==5.1.2
#   python sample.py
#
# User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
# With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.

import os
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

TOPIC, GROUP = "sample-python-cancel", "sample-python-cancel"
TLS = False

user = Credentials(os.environ.get("TIDEWHEEL_ACCESS_KEY", ""), os.environ.get("TIDEWHEEL_SECRET_KEY", ""))
configuration = ClientConfiguration("127.0.0.1:8081", user)
producer = Producer(configuration, (TOPIC,), tls_enable=TLS)
producer.startup()
consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression("*")}, 10, tls_enable=TLS)
consumer.startup()


def timer(body, key=None):
    """Return a message that is delivered in half an hour unless it is cancelled."""
    message = Message()
    message.topic, message.body, message.delivery_timestamp = TOPIC, body, int(time.time()) + 1800
    if key is not None:
        message.add_property("TW_TIMER_KEY", key)
    return message


receipt = producer.send(timer(b"order 7 has timed out"))
producer.recall_message(TOPIC, receipt.recall_handle)  # raises unless the message will not arrive
print("cancelled", receipt.message_id)

producer.send(timer(b"order 8 has timed out", key="order:8"))
paid = Message()  # cancels the timer in the same step, from any process
paid.topic, paid.body = TOPIC, b"order 8 is paid"
paid.add_property("TW_TIMER_CANCEL", "order:8")
sent = producer.send(paid).message_id
print("sent", sent)

received = []
while sent not in received:
    for message in consumer.receive(32, 15):  # up to 32 messages, leased for 15 s
        verdict = message.properties["TW_TIMER_VERDICT"]
        print("received", message.message_id, message.body.decode(), verdict)
        consumer.ack(message)
        received.append(message.message_id)

consumer.shutdown()
producer.shutdown()
