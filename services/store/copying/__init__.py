"""Copies a store, which a broker may be writing to, at one durable offset."""
