"""The record store and modules that are used by the entire core, such as values, errors, and topics."""
