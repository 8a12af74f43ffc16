"""The sample shop: gRPC services for orders, carts and push notifications, built on the official RocketMQ
client.
"""
