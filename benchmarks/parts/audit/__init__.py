"""The parts of audit.py: a log to decode, an audit's truth and cost, datacompy beside it."""
