"""Transactional messages, including half messages, their outcomes, and transaction check-backs."""
