"""The gRPC front: RocketMQ 5's protocol turned into calls on the broker and back."""
