"""The audit: what the log, the databases and the carts say about every order, compared by Spark.

Paths and URLs in, a verdict per order out; nothing here writes to what it reads or calls a service.

    log        where a log's records are, and what they say, as columns; nothing here knows Spark
    source     the same as a PySpark data source, "tidewheel"; datasets names its parts, rows reads them
    streams    the same as it grows; positions says where a stream is, in which log
    inputs     the other books, exported to Parquet, by any names
    proposing  a mapping for somebody's own tables, from a look at them and at the log; no Spark
    staging    the one pass over the log: facts per order, events, counts; and looking them up again
    books      one row per order with all that the stores say of it, joined bucket by bucket (`buckets`)
    cases      what can be wrong with an order; verdicts writes what was found
    report     figures, pictures, one HTML page
    seals, plan, explain      closed books, repairs, and what became of one message
    options, layout, runs     what an audit is told, where its answers lie
    java, session, tasks, main      a Spark of our own, and the audit from start to end

Imports go down: main, verdicts, the rooms of answers, books, staging beside proposing, inputs, source,
streams, log.
"""
