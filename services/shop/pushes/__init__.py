"""The push service: pushes, and the schedules of recurring pushes."""
