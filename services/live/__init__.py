"""Runs the broker core in one asyncio event loop, with group commit and ticks for due work."""
