"""Connected clients: sessions, Telemetry streams, settings, and requests to clients."""
