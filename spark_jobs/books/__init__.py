"""One row per order with all that the stores say of it."""
