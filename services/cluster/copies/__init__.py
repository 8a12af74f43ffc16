"""Copies of a node's store: told of, given to other nodes, fetched, replaced, joined again."""
