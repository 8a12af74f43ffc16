"""The broker's core: the log, queues, timers, and transactions. It reads no clock and does no network I/O."""
