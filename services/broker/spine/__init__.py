"""The record store, and modules used throughout the core, such as values, errors, and topics."""
