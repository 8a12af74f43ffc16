"""The history of a key or message id from the log, without Spark, Arrow, or an index."""
