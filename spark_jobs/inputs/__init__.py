"""The stores other than the log (orders, carts, pushes): their names, and their export to Parquet."""
