"""The books: one row per order with the data of all stores."""
