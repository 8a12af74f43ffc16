"""The running broker: one asyncio loop owns the core, flushes its log, and ticks when timers are due."""
