"""The gRPC front end: it translates the RocketMQ 5 protocol into calls of the broker."""
