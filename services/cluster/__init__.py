"""A broker as one node of a cluster, which leads or follows the leader through a shared log."""
