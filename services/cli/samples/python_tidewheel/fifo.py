# Sends the messages of a group, and receives them in order.
#
#   tidewheel sample python-tidewheel --use fifo > sample.py
#   pip install tidewheel-client
#   python sample.py
#
# Token: TIDEWHEEL_HTTP_TOKEN names its file, where the broker asks. With TLS it verifies the certificate;
# its authority: TIDEWHEEL_HTTP_CA.

from tidewheel import Client

TOPIC, GROUP = "sample-python-tidewheel-fifo", "sample-python-tidewheel-fifo"
client = Client("http://127.0.0.1:8088")

awaited = set()
for step in ("created", "paid", "shipped"):
    one = client.send(TOPIC, f"order 7 is {step}", group="order-7")
    print("sent", one.id)
    awaited.add(one.id)

while awaited:
    for message in client.receive(TOPIC, GROUP):  # no more of a group before these are acknowledged
        print("received", message.id, message.text)
        message.ack()
        awaited.discard(message.id)
