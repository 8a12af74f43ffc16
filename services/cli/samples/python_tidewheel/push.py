# Runs a function for each message, until Ctrl-C: a worker.
#
#   tidewheel sample python-tidewheel --use push > sample.py
#   pip install tidewheel-client
#   python sample.py
#
# Token: TIDEWHEEL_HTTP_TOKEN names its file, where the broker asks. With TLS it verifies the certificate;
# its authority: TIDEWHEEL_HTTP_CA.

from tidewheel import Client, Message, Worker

TOPIC, GROUP = "sample-python-tidewheel-push", "sample-python-tidewheel-push"
client = Client("http://127.0.0.1:8088")
worker = Worker(client)


@worker.consume(TOPIC, group=GROUP)
def handle(message: Message) -> None:
    """The message is acknowledged on return. After an exception, it is delivered again."""
    print("received", message.id, message.text)


print("sent", client.send(TOPIC, "hello from Python").id)
worker.run()
