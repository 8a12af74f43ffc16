"""Diagnosis commands: broker status, checks for monitoring probes, and support bundles."""
