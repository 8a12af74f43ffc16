"""The record store, and modules that the whole core uses, such as values, errors, and topics."""
