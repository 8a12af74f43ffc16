"""Diagnosis: the state of a broker on one screen, checks for probes, reports for support."""
