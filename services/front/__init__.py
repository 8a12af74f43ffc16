"""The protocol port, which serves gRPC over HTTP/2 with or without TLS.

    connection --> first bytes     --> HTTP/2, with or without TLS (`certificates`): `connection`
     (`port`)     (`first_bytes`) --> error in the protocol of the client (`answers`, `refusing`)

    `connection`: bytes of a socket --> `http2`, `header_fields` --> `grpc_calls` --> calls for the services

The modules to the right of `connection` use neither sockets nor a clock. The first bytes of a connection
determine the protocol. Before the TLS handshake, `client_hello` determines the protocols that the client
offers in the ClientHello. `admission` limits the number of connections per address and the idle time of each
connection. `http2.ConnectionLimits` limits the memory of a connection.
"""
