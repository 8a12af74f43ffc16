"""Made by `python -m services.rpc.generate` from apache/rocketmq-apis; do not edit."""
