"""The audit: what the log, the databases and the carts say about every order, compared by Spark.

Paths and URLs in, a verdict per order out; nothing here writes to what it reads or calls a service.

    segments, walk, records               where the log's records are, and the places of their parts
    ragged, properties, hosts, kinds      columns of them; decode joins these into Arrow batches, no Spark
    ranges, queue_index, kept             a part of the log by time, by topic; what outlived its segment
    datasets, source                      the same as a PySpark data source, "tidewheel"; archive ships it
    databases, carts                      the other books, exported to Parquet
    facts, reconcile, statistics          what the log says; which case each order is; rates and lateness
    charts, report                        one HTML page
    java, session, main                   a Spark of our own, and the audit from start to end
"""
