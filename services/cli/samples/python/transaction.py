# Sends two messages that agree with a database: a commit, and a check-back for a commit that never came.
#
#   tidewheel sample python --use transaction > sample.py
#   pip install rocketmq-python-client==5.1.2
#   python sample.py
#
# `tidewheel.Barrier` does this for SQLAlchemy, without a checker: docs/transactions.md.
# User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
# With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.

import os

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

TOPIC, GROUP = "sample-python-transaction", "sample-python-transaction"
TLS = False

user = Credentials(os.environ.get("TIDEWHEEL_ACCESS_KEY", ""), os.environ.get("TIDEWHEEL_SECRET_KEY", ""))
configuration = ClientConfiguration("127.0.0.1:8081", user)
paid = set()  # stands for the table of your database


class Checker(TransactionChecker):
    def check(self, message):
        """Answer the broker's check-back for an open half message. The database determines the outcome."""
        print("asked about", message.message_id)
        if message.body.decode() in paid:
            return TransactionResolution.COMMIT
        # The database may still commit: the broker asks again.
        return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED


producer = Producer(configuration, (TOPIC,), Checker(), tls_enable=TLS)
producer.startup()
consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression("*")}, 10, tls_enable=TLS)
consumer.startup()


def begin(order):
    """Send a half message, which is invisible to consumers until its commit."""
    half = Message()
    half.topic, half.body = TOPIC, order.encode()
    transaction = producer.begin_transaction()
    sent = producer.send(half, transaction).message_id
    print("sent", sent)
    return transaction, sent


transaction, first = begin("order 7 is paid")
paid.add("order 7 is paid")  # the database commits
transaction.commit()

_, second = begin("order 8 is paid")
paid.add("order 8 is paid")  # the database commits, and then the process dies: the broker asks after 6 s

received = set()
while not {first, second} <= received:
    for message in consumer.receive(32, 15):  # up to 32 messages, leased for 15 s
        print("received", message.message_id, message.body.decode())
        consumer.ack(message)
        received.add(message.message_id)

consumer.shutdown()
producer.shutdown()
