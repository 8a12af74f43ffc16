# Cancels a timer by a key of your own, from any process.
#
#   tidewheel sample python-tidewheel --use cancel > sample.py
#   pip install tidewheel-client
#   python sample.py
#
# Token: TIDEWHEEL_HTTP_TOKEN names its file, where the broker asks. With TLS it verifies the certificate;
# its authority: TIDEWHEEL_HTTP_CA.

from tidewheel import Client

TOPIC = "sample-python-tidewheel-cancel"
client = Client("http://127.0.0.1:8088")

client.send(TOPIC, {"order": 7}, delay="30m", key="order:7")
timer = client.timer(TOPIC, "order:7")
print(timer.cancel("paid").verdict)  # CANCELLED: it will not arrive
print(timer.cancel("paid").verdict)  # ALREADY
