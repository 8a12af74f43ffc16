"""The protocol port: one address for plaintext and TLS, told apart by the first byte, in front of gRPC.

    a connection --> its first bytes (`first_bytes`) --> gRPC's plaintext socket
                                                     --> gRPC's TLS socket (`certificates`)
                                                     --> a sentence in its own protocol (`answers`)

Bytes are passed on as they are (`piping`): gRPC itself ends TLS and speaks HTTP/2. What a hello offers
(`client_hello`) and how a handshake fails (`handshake`) is read on the way. `admission` bounds how many
connections an address may have and how long one may say nothing.
"""
