# Sends messages that agree with a database: one by a commit, none by a rollback.
#
#   tidewheel sample python-tidewheel --use transaction > sample.py
#   pip install 'tidewheel-client[txn]'
#   python sample.py
#
# Token: TIDEWHEEL_HTTP_TOKEN names its file, where the broker asks. With TLS it verifies the certificate;
# its authority: TIDEWHEEL_HTTP_CA.

from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from tidewheel import Barrier, Client, NewMessage

TOPIC, GROUP = "sample-python-tidewheel-transaction", "sample-python-tidewheel-transaction"
client = Client("http://127.0.0.1:8088")
engine = create_engine("sqlite:///sample.db")
barrier = Barrier(sessionmaker(engine))
barrier.create_table()
with engine.begin() as connection:
    connection.execute(
        text("CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, paid BOOLEAN NOT NULL)")
    )
    connection.execute(text("DELETE FROM payments"))

with barrier.answering(client, TOPIC):  # the broker asks about what a process leaves open as it dies
    for order, paid in ((7, None), (8, True)):
        try:
            with barrier.transaction(client, NewMessage(TOPIC, f"order {order} is paid")) as session:
                session.execute(text("INSERT INTO payments VALUES (:id, :paid)"), {"id": order, "paid": paid})
        except Exception as error:  # NULL is refused: neither row nor message
            print("rolled back", order, type(error).__name__)

for message in client.receive(TOPIC, GROUP, wait="10s"):
    print("received", message.id, message.text)
    message.ack()
