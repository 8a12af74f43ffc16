"""The broker core (log, queues, timers, and transactions), which uses neither a clock nor network I/O."""
