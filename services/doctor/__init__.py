"""Step-by-step diagnosis of a client's connection to a broker, run on the client's machine.

    name  port  plaintext  TLS  certificate  (`connection`)    route  endpoints  topic  (`route`, `call`)

Each step produces a `Finding` with an observation and, if there is a problem, advice. The examination ends
when a problem makes the next step impossible.
"""
