"""The progress of a consumer group on a queue: its offsets, in-flight messages, and receipts."""
