"""The repair plan: statements, messages, and commands that would repair an audit's findings."""
