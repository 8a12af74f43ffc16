"""A broker as a node of a cluster: the node either leads, or follows the leader through a shared log."""
