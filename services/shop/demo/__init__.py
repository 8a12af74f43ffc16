"""The demo: a complete shop that runs against a broker and ends with an audit of its stores.

The parent process starts all other processes as `tidewheel` commands and calls them over gRPC and HTTP. It
does not load the RocketMQ client. `story.py` runs the steps of a demo in order.
"""
