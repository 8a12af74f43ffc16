"""Commands for topics, consumer groups, clients, and dead letters."""
