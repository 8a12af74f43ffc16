"""The broker's core: the log, queues, timers, and transactions, without a clock and without network I/O."""
