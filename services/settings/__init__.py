"""The settings of the broker and the commands, and the sources of their values."""
