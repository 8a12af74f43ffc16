"""Why a client cannot work with a broker: asked step by step from where the client runs.

    name  port  plaintext  TLS  certificate  (`connection`)    route  endpoints  topic  (`route`, `call`)

Each step is a `Finding` with what was seen and, where it is wrong, what to do; a step that makes the next one
pointless ends the examination.
"""
