"""The shop: orders, carts and pushes, each a small gRPC service over the official RocketMQ client."""
