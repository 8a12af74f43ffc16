# Sends a message that is delivered in 3 seconds.
#
#   tidewheel sample python-tidewheel --use delay > sample.py
#   pip install tidewheel-client
#   python sample.py
#
# Token: TIDEWHEEL_HTTP_TOKEN names its file, where the broker asks. With TLS it verifies the certificate;
# its authority: TIDEWHEEL_HTTP_CA.

from datetime import UTC, datetime, timedelta

from tidewheel import Client

TOPIC, GROUP = "sample-python-tidewheel-delay", "sample-python-tidewheel-delay"
client = Client("http://127.0.0.1:8088")

due = datetime.now(UTC) + timedelta(seconds=3)
sent = client.send(TOPIC, "a reminder from Python", at=due)  # or delay="3s"
print("sent", sent.id)

received = set()
while sent.id not in received:
    for message in client.receive(TOPIC, GROUP):
        late = (datetime.now(UTC) - due) // timedelta(milliseconds=1)
        print("received", message.id, message.text, late, "ms after it was due")
        message.ack()
        received.add(message.id)
