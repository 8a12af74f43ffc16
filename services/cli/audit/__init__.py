"""The audit: runs, their results, mappings, plans, closed books, a nightly schedule."""
