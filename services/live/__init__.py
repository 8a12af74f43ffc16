"""Runs the broker in one asyncio loop, which owns the core, flushes its log, and ticks for due timers."""
