"""Settings: as options of the commands that start processes, and shown with their origins."""
