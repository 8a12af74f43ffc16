"""The broker's core: log, queues, wheel and transactions; it does no I/O of its own and reads no clock."""
