"""The parts of transactions.py: the core alone, and a client over gRPC."""
