# Sends the messages of a group, and receives them in order.
#
#   tidewheel sample python --use fifo > sample.py
#   pip install rocketmq-python-client==5.1.2
#   python sample.py
#
# User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
# With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.

import os

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

TOPIC, GROUP = "sample-python-fifo", "sample-python-fifo"
TLS = False

user = Credentials(os.environ.get("TIDEWHEEL_ACCESS_KEY", ""), os.environ.get("TIDEWHEEL_SECRET_KEY", ""))
configuration = ClientConfiguration("127.0.0.1:8081", user)
producer = Producer(configuration, (TOPIC,), tls_enable=TLS)
producer.startup()
consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression("*")}, 10, tls_enable=TLS)
consumer.startup()

sent = []
for step in ("created", "paid", "shipped"):
    message = Message()
    message.topic, message.message_group, message.body = TOPIC, "order-7", f"order 7 is {step}".encode()
    sent.append(producer.send(message).message_id)
    print("sent", sent[-1])

received = set()
while not received.issuperset(sent):
    for message in consumer.receive(32, 15):  # no more of a group before these are acknowledged
        print("received", message.message_id, message.body.decode())
        consumer.ack(message)
        received.add(message.message_id)

consumer.shutdown()
producer.shutdown()
