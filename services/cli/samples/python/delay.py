# Sends a message that is delivered in 3 seconds.
#
#   tidewheel sample python --use delay > sample.py
#   pip install rocketmq-python-client==5.1.2
#   python sample.py
#
# User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
# With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.

import os
import time

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

TOPIC, GROUP = "sample-python-delay", "sample-python-delay"
TLS = False

user = Credentials(os.environ.get("TIDEWHEEL_ACCESS_KEY", ""), os.environ.get("TIDEWHEEL_SECRET_KEY", ""))
configuration = ClientConfiguration("127.0.0.1:8081", user)
producer = Producer(configuration, (TOPIC,), tls_enable=TLS)
producer.startup()
consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression("*")}, 10, tls_enable=TLS)
consumer.startup()

due = int(time.time()) + 3  # seconds since 1970
message = Message()
message.topic, message.body, message.delivery_timestamp = TOPIC, b"a reminder from Python", due
sent = producer.send(message).message_id
print("sent", sent)

received = []
while sent not in received:
    for message in consumer.receive(32, 15):  # up to 32 messages, leased for 15 s
        late_ms = (time.time() - due) * 1000
        print("received", message.message_id, message.body.decode(), f"{late_ms:.0f} ms after it was due")
        consumer.ack(message)
        received.append(message.message_id)

consumer.shutdown()
producer.shutdown()
