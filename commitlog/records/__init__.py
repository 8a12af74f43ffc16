"""The format of records: their bytes, properties, kinds, batches, and compressed bodies."""
