# Sends a message, receives it and acknowledges it.
#
#   tidewheel sample python-tidewheel --use plain > sample.py
#   pip install tidewheel-client
#   python sample.py
#
# Token: TIDEWHEEL_HTTP_TOKEN names its file, where the broker asks. With TLS it verifies the certificate;
# its authority: TIDEWHEEL_HTTP_CA.

from tidewheel import Client

TOPIC, GROUP = "sample-python-tidewheel-plain", "sample-python-tidewheel-plain"
client = Client("http://127.0.0.1:8088")

sent = client.send(TOPIC, "hello from Python", keys=["order-7"])
print("sent", sent.id)

received = set()
while sent.id not in received:
    for message in client.receive(TOPIC, GROUP):
        print("received", message.id, message.text)
        message.ack()
        received.add(message.id)
