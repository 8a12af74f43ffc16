# Sends a message, receives it and acknowledges it.
#
#   tidewheel sample python --use plain > sample.py
#   pip install rocketmq-python-client==5.1.2
#   python sample.py
#
# User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
# With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.

import os

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

TOPIC, GROUP = "sample-python-plain", "sample-python-plain"
TLS = False

user = Credentials(os.environ.get("TIDEWHEEL_ACCESS_KEY", ""), os.environ.get("TIDEWHEEL_SECRET_KEY", ""))
configuration = ClientConfiguration("127.0.0.1:8081", user)
producer = Producer(configuration, (TOPIC,), tls_enable=TLS)
producer.startup()
consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression("*")}, 10, tls_enable=TLS)
consumer.startup()

message = Message()
message.topic, message.keys, message.body = TOPIC, "order-7", b"hello from Python"
sent = producer.send(message).message_id
print("sent", sent)

received = []
while sent not in received:
    for message in consumer.receive(32, 15):  # up to 32 messages, leased for 15 s
        print("received", message.message_id, message.body.decode())
        consumer.ack(message)
        received.append(message.message_id)

consumer.shutdown()
producer.shutdown()
