"""What the log says of one key or message id, without Spark and without an index."""
