"""The protocol port, which serves gRPC over HTTP/2 on one address and detects TLS by the first byte.

    a connection --> its first bytes --> HTTP/2, with or without TLS (`certificates`): `connection`
     (`port`)       (`first_bytes`)  --> an error in its own protocol (`answers`, `refusing`)

    `connection`: a socket's bytes --> `http2`, `header_fields` --> `grpc_calls` --> calls for the services

The modules after `connection` use no sockets and no clock. `client_hello` reads the protocols that a
ClientHello offers, before the TLS handshake. `admission` limits the number of connections per address and the
idle time of a connection, and `http2.Bounds` limits the memory of a connection.
"""
