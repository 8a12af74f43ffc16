"""The `tidewheel` command: words for people, exit codes for scripts."""
