"""The ground floor: the record format, the log of records, the disk beneath it, errors and limits."""
