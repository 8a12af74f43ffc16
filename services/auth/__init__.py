"""Who may do what: signatures of callers, rights on topics and groups, sealed secrets. No I/O, no clock."""
