"""Consumer groups: offsets, filters, leases, receives, lite topics, and dead letters."""
