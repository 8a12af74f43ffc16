"""A store's log as columns, without Spark: where its records are, whether they are sound, what they say."""
