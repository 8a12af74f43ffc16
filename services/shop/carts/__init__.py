"""The cart service: carts in Redis, and the redis-server that keeps them."""
