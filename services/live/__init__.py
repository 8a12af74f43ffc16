"""The broker brought to life: one asyncio loop that owns it, flushes its log, and rings its timers."""
