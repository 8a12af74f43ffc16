"""The audit: what the log, the databases and the carts say about every order, compared by Spark.

Paths and URLs in, a verdict per order out; nothing here writes to what it reads or calls a service.

    segments, walk, properties, decode    log bytes -> Arrow, no Spark
    source                                the same as a PySpark data source, "tidewheel"
    databases, carts                      the other books, exported to Parquet
    facts, reconcile, statistics          what the log says; which case each order is; rates and lateness
    charts, report                        one HTML page
    java, session, main                   a Spark of our own, and the audit from start to end
"""
