"""Modules of the scripts: a folder for each script with several files, and shared modules."""
