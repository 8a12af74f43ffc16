"""The protocol port: one address for plaintext and TLS, told apart by the first byte; HTTP/2 and gRPC.

    a connection --> its first bytes --> HTTP/2, or TLS with it (`certificates`): `connection`
     (`port`)       (`first_bytes`)  --> a sentence in its own protocol (`answers`, `refusing`)

    `connection`: a socket's bytes --> `http2`, `header_fields` --> `grpc_calls` --> calls for who serves them

Everything behind `connection` has no socket and no clock. What a hello offers is read before the handshake
(`client_hello`). `admission` bounds how many connections an address may have and how long one may say
nothing; `http2.Bounds` what one of them may hold.
"""
