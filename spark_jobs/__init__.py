"""The audit: what the log, the databases and the carts say about every order, compared by Spark.

Paths and URLs in, a verdict per order out; nothing here writes to what it reads or calls a service.

    segments, walk, records               where the log's records are, and the places of their parts
    ragged, properties, hosts, kinds      columns of them; decode joins these into Arrow batches, no Spark
    ranges, queue_index, kept             a part of the log by time, by topic; what outlived its segment
    datasets, source                      the same as a PySpark data source, "tidewheel"; archive ships it
    inputs, mapping, databases, carts     the other books, exported to Parquet, by any names
    events, bodies, acknowledged          what records say of orders, in whole columns
    tally, order_facts, staging           the one pass over the log: facts per order, events, counts
    order_events, exact, fifo, timelines  a closer look at some orders
    books, differences, log_bodies        one row per order with all that the stores say of it
    cases                                 what can be wrong with an order; verdicts writes what was found
    options, layout, summary              what an audit is told, where its answers lie, what they are
    statistics, charts, report            rates and lateness; one HTML page
    java, session, main                   a Spark of our own, and the audit from start to end
"""
