"""What runs for long: the broker's process, and the audit of each night."""
