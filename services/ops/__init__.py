"""The HTTP interface for operators: metrics, health, and a JSON view of topics and messages."""
