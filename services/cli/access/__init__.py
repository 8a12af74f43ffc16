"""Access: users, rights and tokens; callers that were refused."""
