"""Topics, consumer groups, their clients and their dead letters."""
