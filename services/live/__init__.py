"""Runs the broker core in an asyncio event loop, with group commit and scheduled work."""
