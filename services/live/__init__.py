"""The broker brought to life: one asyncio loop owns it, flushes its log, and ticks when timers are due."""
