"""The demo: a whole shop against a broker, from real or made-up orders to the audit of its books.

The parent process starts everything else as `tidewheel` commands, talks gRPC and HTTP to them, and never
loads the RocketMQ client itself. `story.py` tells the run from top to bottom.
"""
