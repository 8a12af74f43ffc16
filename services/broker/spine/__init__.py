"""The store of records and what every room of the core shares: values, errors, settings, clocks, topics."""
