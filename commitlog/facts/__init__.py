"""The facts of records, and the encoding of acknowledgement and lease records."""
