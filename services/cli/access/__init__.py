"""Commands for users, rights, tokens, and refused callers."""
