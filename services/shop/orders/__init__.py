"""The order service: orders, their messages, and their deadlines."""
