"""The record store and the modules used throughout the core, such as values, errors, and topics."""
