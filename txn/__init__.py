"""Transactional messages, which consist of half messages, outcomes, and check-backs."""
