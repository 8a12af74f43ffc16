"""Consumer groups: offsets, filters, leases, receiving, lite topics and dead letters."""
