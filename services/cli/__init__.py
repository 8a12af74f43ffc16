"""The `tidewheel` command, with text output for users and exit codes for scripts."""
