"""The Prometheus metrics of the HTTP interface."""
