"""The one pass over the log, and what can be looked up in what it has left."""
