"""HTTP client for threads and for asyncio.

clients.py    Client, AsyncClient                                  what applications use
handles.py    Message, Timer
calls.py      each operation: its request, its answer as values    no I/O
exchange.py   requests repeated or given up, errors                no I/O
http.py       the two shells, over httpx2 or httpx                 I/O
address.py    arguments and environment
spans.py, bodies.py, values.py

worker.py     Worker: functions run for messages; the rules
consumer.py   a function, and its messages
running.py    one consumer at work: receives, leases, ends
acks.py       acknowledgements that share a call
endings.py    how a message ends after its function                no I/O
work.py       the command `tidewheel work`
"""
