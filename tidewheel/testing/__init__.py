"""Test support for applications: a real broker with a virtual clock, as a pytest fixture."""
