"""Runs the broker core in an asyncio event loop, with group commit and with ticks for due work."""
