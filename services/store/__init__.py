"""Tools to inspect, verify, copy, and repair a store."""
