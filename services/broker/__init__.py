"""The broker's core: joins log, queues, wheel and transactions; does no I/O of its own and reads no clock."""
