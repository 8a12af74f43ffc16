"""The broker's core: the log, queues, timers, and transactions. The core reads no clock and does no network
I/O."""
