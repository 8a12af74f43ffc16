"""Tasks that apply an operation to many items at a limited rate."""
