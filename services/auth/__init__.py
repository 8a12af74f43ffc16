"""Access control: signatures of callers, rights on topics and groups, and encrypted secrets.

This package uses no I/O and no clock.
"""
