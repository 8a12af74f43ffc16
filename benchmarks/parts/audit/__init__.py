"""The parts of audit.py: a log to decode, an audit's truth and cost, the comparison with datacompy."""
