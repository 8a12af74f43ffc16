"""The record store, and modules that are used throughout the core, such as values, errors, and topics."""
