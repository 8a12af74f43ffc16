"""The protocol port, which serves gRPC over HTTP/2 on one address and detects TLS by the first byte.

    a connection --> its first bytes --> HTTP/2, or TLS with it (`certificates`): `connection`
     (`port`)       (`first_bytes`)  --> an error in its own protocol (`answers`, `refusing`)

    `connection`: a socket's bytes --> `http2`, `header_fields` --> `grpc_calls` --> calls for the services

The modules after `connection` use no sockets and no clock. `client_hello` reads the protocols that a
ClientHello offers, before the handshake. `admission` limits the connections of an address and the silence of
a connection, and `http2.Bounds` limits the memory of a connection.
"""
