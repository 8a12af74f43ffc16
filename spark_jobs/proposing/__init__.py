"""A mapping for somebody's own tables, proposed from what the database and the log hold, with reasons."""
