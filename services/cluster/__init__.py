"""A broker as one node of a cluster: follows the leader through a shared log, or leads."""
