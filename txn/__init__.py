"""Transactional messages, with half messages, outcomes, and check-backs."""
