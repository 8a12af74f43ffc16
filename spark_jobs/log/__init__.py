"""Reads the log of a store into columns, without Spark: locates, verifies, and decodes the records.

    parts      what a task reads: slices, indexed records, kept records
    marks      identify a log; snapshots names the files of its newest snapshot
    kept       kept records of deleted segments
    index      ranges by time, and records of topics
    scan       the records of a slice, as Arrow columns
    columns    the fields of many records

Imports go down: parts; kept, index and marks; scan; columns.
"""
