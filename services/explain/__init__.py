"""What the log says of one key or message id: no Spark, no Arrow, no index."""
