"""Runs the broker core in an asyncio event loop, with group commit and ticks for work that is due."""
