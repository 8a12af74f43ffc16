"""The protocol port, which serves gRPC over HTTP/2 and uses the first byte of a connection to detect TLS.

    a connection --> its first bytes --> HTTP/2, with or without TLS (`certificates`): `connection`
     (`port`)       (`first_bytes`)  --> an error in its own protocol (`answers`, `refusing`)

    `connection`: a socket's bytes --> `http2`, `header_fields` --> `grpc_calls` --> calls for the services

None of the modules to the right of `connection` uses a socket or a clock. `client_hello` determines the
protocols offered in a ClientHello before the TLS handshake. `admission` limits the number of connections per
address and their idle time, and `http2.ConnectionLimits` limits the memory of a connection.
"""
