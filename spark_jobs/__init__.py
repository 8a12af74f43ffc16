"""The audit: compares the records of the log, the databases and the carts for every order, with Spark.

The input is paths and URLs, and the output is a verdict per order. No module writes to a store that it reads,
or calls a service.

    log        the records of a log as Arrow columns; without Spark; its rooms are listed there
    source     the same as a PySpark data source, "tidewheel" (options: source_options, datasets, rows)
    streams    the same as a stream; positions locates a stream in a log
    inputs     the databases and carts, exported to Parquet under our names
    proposing  proposes a mapping for a user's tables, from them and the log; without Spark
    staging    the one pass over the log: facts per order, events, counts; and lookups in the log
    books      one row per order with the data of all stores, joined bucket by bucket (`buckets`)
    cases      the conditions that an order can violate; verdicts writes the result
    report     figures, charts, one HTML page (names, amounts)
    seals, plan               sealed windows of the books, and repair plans
    options, layout, runs     the options and the output files of an audit
    java, session, tasks, main      a local Spark, and the audit from start to end

Imports go down: main; verdicts; report, plan and seals; books; staging and proposing; inputs; source;
streams; positions and rows; source_options; log.
"""
