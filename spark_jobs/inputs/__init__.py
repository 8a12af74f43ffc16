"""The stores beside the log (orders, carts, pushes): what they are called, and their way into Parquet."""
