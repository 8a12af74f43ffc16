"""The parts of receive.py: the core alone, a client over gRPC, Redis streams."""
