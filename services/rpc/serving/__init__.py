"""The table of RPCs, and the execution of calls in event loop iterations."""
