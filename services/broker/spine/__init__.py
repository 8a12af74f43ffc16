"""The record store and the modules shared by the whole core: values, errors, settings, clocks, and topics."""
