"""The broker's core: the log, queues, wheel, and transactions, without I/O of its own or a clock."""
