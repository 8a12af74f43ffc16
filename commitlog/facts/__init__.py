"""What a record means: the facts of records, and the bodies in which those of groups are written."""
